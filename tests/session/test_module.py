"""``import coexec as ort``, and ``onnxruntime.InferenceSession = coexec.InferenceSession``."""

import inspect
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import coexec
from coexec.engines.detect import usable_cores
from tests.helpers.quick_choice import PROGRAM
from tests.helpers.small_models import branches


def test_public_names_are_handed_on() -> None:
    for name in (
        "get_available_providers",
        "OrtValue",
        "RunOptions",
        "GraphOptimizationLevel",
        "NodeArg",
        "set_default_logger_severity",
        "get_device",
        "ExecutionMode",
        "OrtDevice",
        "ModelMetadata",
        "SparseTensor",
        "capi",
    ):
        assert getattr(coexec, name) is getattr(onnxruntime, name)
    assert coexec.OrtValue.ortvalue_from_numpy(np.ones(2)).shape() == [2]
    for name in ("nope", "__nope__", "_get_package_version"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(coexec, name)


def test_public_names_are_listed_and_have_docstrings() -> None:
    assert set(coexec.__all__) < set(dir(coexec))
    for name in coexec.__all__:
        thing = getattr(coexec, name)
        assert inspect.getdoc(thing), name
        members = vars(thing).items() if inspect.isclass(thing) else ()
        for member, value in members:
            if member[0] != "_" and isinstance(value, property | classmethod | types.FunctionType):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_no_usage_events_of_onnx_runtime_are_collected(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(branches(), str(model))
    session = f"import coexec; coexec.InferenceSession({str(model)!r}, background=False)"
    env = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    folders = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM + session], env=env | folders, check=True)
    written = {path.name for path in tmp_path.rglob("*")}
    assert "profiles-4.sqlite" in written
    assert not written & {"deviceid", "onnxruntime.db"}


def test_our_own_classes_are_theirs() -> None:
    for name in ("InferenceSession", "SessionOptions", "IOBinding"):
        ours, theirs = getattr(coexec, name), getattr(onnxruntime, name)
        assert ours is not theirs and issubclass(ours, theirs)
    assert coexec.__version__ != onnxruntime.__version__


def test_our_modules_are_not_looked_for_in_onnx_runtime() -> None:
    said = program(
        "import sys\nfrom coexec import units, errors\nprint('onnxruntime' in sys.modules)"
    )
    assert said == ["False"]


def program(text: str, *words: str) -> list[str]:
    """The words that a program of its own prints."""
    run = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


PATCHED = """
import sys
{imports}
class Earlier(onnxruntime.InferenceSession):
    pass
onnxruntime.InferenceSession = coexec.InferenceSession
{capi}
import numpy as np

class Ours(coexec.InferenceSession):
    def run_ones(self):
        return self.run(None, {{"x": np.ones((1, 3, 20, 20), np.float32)}})

class Patched(onnxruntime.InferenceSession):
    def __init__(self, path, **words):
        super().__init__(path, **words)
        self.path = path
    run_ones = Ours.run_ones

path, devices, cache = sys.argv[1:]
words = dict(devices=devices, planner="hope_greedy", cache=cache)
found = [kind(path, **words).run_ones() for kind in (Ours, Patched)]
plain = onnxruntime.InferenceSession(path, None, ["CPUExecutionProvider"], **words)
found.append(Ours.run_ones(plain))
found.append(Ours.run_ones(Earlier(path)))
same = all(np.allclose(a, b, 1e-3, 1e-4) for other in found for a, b in zip(found[0], other))
planned = Patched(path, **words)
print(same, planned.devices != (), isinstance(planned, onnxruntime.InferenceSession))
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("imports", ["import onnxruntime, coexec", "import coexec, onnxruntime"])
@pytest.mark.parametrize(
    "capi",
    [
        "",
        "onnxruntime.capi.onnxruntime_inference_collection.InferenceSession = "
        "coexec.InferenceSession",
    ],
)
def test_patched(imports: str, capi: str, tmp_path: Path) -> None:
    onnx.save(branches(), str(tmp_path / "m.onnx"))
    devices = ",".join(f"cpu:{core}" for core in usable_cores()[:2])
    text = PATCHED.format(imports=imports, capi=capi)
    said = program(text, str(tmp_path / "m.onnx"), devices, str(tmp_path / "cache"))
    assert said == ["True", "True", "True"]
