"""What users see where OpenCL does not work."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.helpers.opencl_gpu import GPU, stand_in_gpu
from tests.helpers.small_models import branches

pytest.importorskip("pyopencl")

from coexec.cli import main
from coexec.engines import survey, trial
from coexec.engines.cuda.engine import Cuda
from coexec.engines.opencl import platforms
from coexec.engines.registry import describe, listed, load_engine, open_devices, tried
from coexec.errors import DeviceError
from coexec.selection.configurations import configurations

FAILURE = "failed (error: no such instruction)"
NO_PYOPENCL = "import sys; sys.modules['pyopencl'] = None; "


@pytest.fixture(autouse=True)
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that has failed its trial."""
    gpu = stand_in_gpu()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "_verdicts", {})
    monkeypatch.setattr(trial, "_tried", lambda *_: FAILURE)
    monkeypatch.setattr(platforms, "is_gpu", lambda handle: handle == gpu.handle)
    monkeypatch.setattr(Cuda, "processors", lambda self, kind: [])
    monkeypatch.setattr(survey, "_listing", _listed_here)
    yield


def _listed_here(name: str, limit_s: float) -> Any:
    """The processors of an engine, as this process finds them."""
    engine = load_engine(name)
    return engine.rank, name, [tried(engine, each) for each in listed(engine, None)]


def test_opening_it_is_one_error_with_reasons_and_remedy() -> None:
    with pytest.raises(DeviceError) as caught:
        open_devices([GPU])
    message = str(caught.value)
    assert message.startswith(f"engine opencl is unusable on gpu:0: a small model {FAILURE}")
    assert "coexec devices --fresh" in message


def test_the_command_line_ends_with_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "model.onnx")
    onnx.save(branches(), model)
    code = main(["run", model, "--devices", GPU, "--cache", str(tmp_path / "cache")])
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert code == 3 and line.startswith("coexec: engine opencl is unusable on gpu:0: ")
    assert FAILURE in line


def row_of_gpu(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What `coexec devices` says of OpenCL on the GPU."""
    assert main(["devices", "--json", *words]) == 0
    (row,) = [r for r in json.loads(capfd.readouterr().out)["processors"] if r["name"] == "gpu:0"]
    return dict(row["by"]["opencl"])


def test_it_is_listed_as_unusable(capfd: pytest.CaptureFixture[str]) -> None:
    reason = row_of_gpu(capfd)["unusable"]
    assert FAILURE in reason
    assert main(["devices"]) == 0
    printed = capfd.readouterr().out
    assert f"gpu:0/opencl: {reason}" in printed


def test_it_is_tried_again_on_demand(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert row_of_gpu(capfd)["unusable"] is not None
    monkeypatch.setattr(trial, "_tried", lambda *_: "")
    assert row_of_gpu(capfd)["unusable"] is not None
    assert row_of_gpu(capfd, "--fresh")["unusable"] is None
    assert row_of_gpu(capfd)["unusable"] is None


def test_auto_carries_on_with_the_cpu() -> None:
    names = {name for configuration in configurations() for name in configuration}
    assert names and not any("opencl" in name or name.startswith("gpu") for name in names)


@pytest.mark.parametrize("cause", ["pyopencl", "driver"])
def test_what_is_missing_is_said(cause: str, tmp_path: Path) -> None:
    """The folder of the OpenCL drivers does not exist, or pyopencl."""
    code = "from coexec.engines.registry import describe; describe('gpu:0/opencl')"
    done = process(NO_PYOPENCL + code if cause == "pyopencl" else code, tmp_path)
    last = done.stderr.splitlines()[-1]
    assert re.search("DeviceError: device 'gpu:0' does not exist; this machine's devices of ", last)
    assert ("pip install pyopencl" in last) == (cause == "pyopencl")
    code = "from coexec.cli import main; raise SystemExit(main(['devices']))"
    done = process(NO_PYOPENCL + code if cause == "pyopencl" else code, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0) and "opencl" not in done.stdout


def test_it_drives_no_cores() -> None:
    with pytest.raises(DeviceError, match=r"engine cpp runs the same kernels .*ziglang$") as caught:
        describe("cpu:0/opencl")
    assert str(caught.value).startswith("engine 'opencl' does not drive 'cpu:0', but gpu; ")


def process(code: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """A Python process that runs ``code``, without drivers."""
    folder = {"OCL_ICD_VENDORS": str(home / "nowhere"), "XDG_CACHE_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | folder | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
