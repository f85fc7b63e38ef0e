"""What users and tests see where OpenCL does not work."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import branches

pytest.importorskip("pyopencl")

from coexec.choosing.auto import Auto
from coexec.choosing.configurations import configurations
from coexec.cli import main
from coexec.engines.opencl import trial
from coexec.engines.opencl.platforms import devices
from coexec.engines.registry import open_devices
from coexec.errors import DeviceError
from coexec.frontend.check import plain_session, worst_difference
from coexec.profiling.profiler import Effort
from coexec.session import InferenceSession

ROOT = Path(__file__).parents[3]
NO_PYOPENCL = "import sys; sys.modules['pyopencl'] = None; "
RUN_TESTS = """
import pytest
files = ["tests/engines/test_devices.py", "tests/engines/opencl/test_opencl_engine.py"]
raise SystemExit(pytest.main(["-p", "no:cacheprovider", "-k", "gpu or (fp16 and nvidia)", *files]))
"""


def fail_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """All OpenCL devices of this machine have failed their trial. Returns how many there are.

    The verdict is in the cache folder ``home``, which is also that of the processes started here.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    for device in devices():
        facts = trial._facts(device)
        trial._write(trial._memo(facts), facts, "failed (error: unknown target CPU 'generic')")
    return len(devices())


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many OpenCL devices this machine has, all of them unusable."""
    count = fail_all(tmp_path / "home", monkeypatch)
    if not count:
        pytest.skip("this machine lists no OpenCL device")
    return count


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(branches(), str(tmp_path / "model.onnx"))
    return str(tmp_path / "model.onnx")


@pytest.mark.usefixtures("broken")
def test_opening_it_is_one_error_with_reason_and_remedy() -> None:
    with pytest.raises(DeviceError) as caught:
        open_devices(["gpu:0"])
    message = str(caught.value)
    assert message.startswith("device 'gpu:0': ") and "is unusable: a small test kernel" in message
    assert "unknown target CPU 'generic'" in message and "coexec devices --fresh" in message


@pytest.mark.usefixtures("broken")
def test_the_command_line_ends_with_one_line(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", model, "--devices", "gpu:0", "--cache", str(tmp_path / "cache")])
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert code == 2 and line.startswith("coexec: device 'gpu:0': ")
    assert "unknown target CPU 'generic'" in line


def test_it_is_listed_as_unusable(broken: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["opencl"]
    assert [row["name"] for row in rows] == [f"gpu:{i}" for i in range(broken)]
    assert all("unknown target CPU 'generic'" in row["unusable"] for row in rows)
    assert main(["devices"]) == 0
    printed = capfd.readouterr().out
    assert all(f"{row['name']}: {row['unusable']}" in printed for row in rows)
    assert "bind it to those" not in printed


def test_it_is_tried_again_on_demand(
    broken: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "_tried", lambda found: "")
    assert main(["devices", "--json", "--fresh"]) == 0
    rows = json.loads(capfd.readouterr().out)["opencl"]
    assert [row["unusable"] for row in rows] == [None] * broken


@pytest.mark.usefixtures("broken")
def test_auto_carries_on_with_the_cpu(tmp_path: Path) -> None:
    names = {name for configuration in configurations() for name in configuration}
    assert names and not any(name.startswith("gpu") for name in names)
    proto, cache = branches(), tmp_path / "cache"
    Auto(proto, cache=cache, effort=Effort(warm_up=1, least=2, most=2)).choose()
    with InferenceSession(proto, planner="auto", cache=cache) as session:
        assert all(name.startswith("cpu:") for name in session.get_providers())
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        found = session.run(None, feeds)
    for a, b in zip(found, plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(a, b) < 1e-5


def test_auto_carries_on_without_a_runtime(tmp_path: Path) -> None:
    """The folder of the OpenCL drivers does not exist."""
    code = "from coexec.choosing.configurations import configurations; print(configurations())"
    done = process(code, {"OCL_ICD_VENDORS": str(tmp_path / "nowhere")})
    assert done.returncode == 0 and done.stderr == ""
    assert "cpu:" in done.stdout and "gpu" not in done.stdout


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("pyopencl", "pyopencl"),
        ("runtime", "no usable OpenCL device on CPU cores: this machine has none"),
        (
            "trial",
            "no usable OpenCL device on CPU cores: .* is unusable: a small test kernel failed",
        ),
    ],
)
def test_tests_are_skipped_with_the_reason(
    cause: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"OCL_ICD_VENDORS": str(tmp_path / "nowhere")} if cause == "runtime" else {}
    if cause == "trial" and not fail_all(tmp_path / "home", monkeypatch):
        pytest.skip("this machine lists no OpenCL device")
    done = process((NO_PYOPENCL if cause == "pyopencl" else "") + RUN_TESTS, env)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"SKIPPED \[\d+\] .*{reason}", done.stdout), done.stdout


def process(code: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """A Python process in the root of the project that runs ``code``."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env=os.environ | env | {"PYTHONPATH": paths}, check=False,
    )  # fmt: skip
