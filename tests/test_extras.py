"""The packages of ONNX Runtime: which are installed, and what is said without any."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import coexec
from coexec import extras
from coexec.engines import runtimes
from coexec.engines.onnxruntime.engine import OnnxRuntime

SOURCE = Path(coexec.__file__).parents[1]
WITHOUT = "import sys; sys.modules['onnxruntime'] = None; "
HALF_REMOVED = """
import importlib.machinery, sys

class Finder:
    def find_spec(name, *_):
        if name == "onnxruntime":
            return importlib.machinery.ModuleSpec(name, None, is_package=True)

sys.meta_path.insert(0, Finder)
"""
"""Its folder is there, without the module's files: Python makes an empty module of it."""


def installed(folder: Path, name: str, *files: str) -> None:
    about = folder / f"{name}.dist-info"
    about.mkdir()
    (about / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))


def test_packages_that_bring_the_same_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent")])
    assert not runtimes.onnx_runtimes()
    module = "onnxruntime/__init__.py"
    installed(tmp_path, "onnxruntime-1.32.0", module, "onnxruntime/capi/x.so")
    installed(tmp_path, "onnxruntime_gpu-1.31.1", "x.txt", module)
    installed(tmp_path, "onnxruntime_ep_webgpu-0.4.0", "onnxruntime_ep_webgpu/__init__.py")
    assert runtimes.onnx_runtimes() == {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}
    assert runtimes.packages_of_onnx_runtime()["onnxruntime-ep-webgpu"] == "0.4.0"
    assert OnnxRuntime().installed == "onnxruntime 1.32.0, onnxruntime-gpu 1.31.1"


def test_no_second_onnx_runtime_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extras.install("cuda") == "pip install cuda-bindings nvidia-cuda-nvrtc"
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert extras.install("cuda").startswith("pip install onnxruntime-gpu cuda-bindings")
    assert extras.install("cpu") == "pip install onnxruntime"


@pytest.mark.parametrize("removed", [WITHOUT, HALF_REMOVED], ids=["all", "half"])
@pytest.mark.parametrize(
    "code",
    [
        "from coexec import InferenceSession",
        "import coexec; coexec.load",
        "import coexec; coexec.OrtValue",
    ],
)
def test_an_import_without_onnx_runtime_names_both_packages(code: str, removed: str) -> None:
    done = run(f"{removed}{code}")
    assert done.returncode == 1
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("ImportError")]
    assert "pip install onnxruntime for CPU" in line and "pip install onnxruntime-gpu for" in line


def test_what_needs_no_engine_works_without_onnx_runtime() -> None:
    assert (
        run(f"{WITHOUT}import coexec; coexec.Plan, coexec.PLANNERS, coexec.System").returncode == 0
    )


@pytest.mark.parametrize("removed", [WITHOUT, HALF_REMOVED], ids=["all", "half"])
def test_the_command_line_without_onnx_runtime_is_one_line(removed: str) -> None:
    done = run(f"{removed}from coexec.cli import main; sys.exit(main(['run', 'zoo:tiny']))")
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("coexec: coexec needs ONNX Runtime") or "pip install onnxruntime" in line


def run(code: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
