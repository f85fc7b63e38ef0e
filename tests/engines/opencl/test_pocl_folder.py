"""PoCL compiles through files, and ends the process if it cannot write them."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from coexec.engines.opencl import platforms, pocl, tried
from coexec.engines.opencl.pocl import Pocl
from coexec.errors import DegradedWarning, DeviceError
from coexec.model.difference import worst_difference
from coexec.model.reference_session import plain_session
from coexec.session import InferenceSession
from tests.helpers.gpu_networks import small_network
from tests.helpers.needs_opencl import opencl_found, opencl_name
from tests.helpers.patience import ENOUGH_S

FULL_DISK = """
import errno, os
from coexec.engines.opencl import pocl
real = os.posix_fallocate

def refusing(handle, start, size):
    if os.readlink(f"/proc/self/fd/{handle}").startswith(os.environ["FULL"]):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real(handle, start, size)

pocl.os.posix_fallocate = refusing
"""
"""Makes the disk of the folder FULL a full one."""
LIST = """
from coexec.engines.opencl.platforms import devices
print(*(device.platform for device in devices()), sep=",")
print(*(device.runtime._folder for device in devices() if device.platform.startswith("Portable")))
"""


@pytest.fixture(autouse=True)
def uses_pocl() -> None:
    if not isinstance(opencl_found().runtime, Pocl):
        pytest.skip("the OpenCL runtime is not PoCL")


@pytest.mark.parametrize("fault", [None, "no folder", "full"])
def test_devices_exist_where_the_cache_folder_cannot_be_written(
    fault: str | None, tmp_path: Path
) -> None:
    """PoCL's files are then in a folder for temporary files. They are removed at the end."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    if fault == "no folder":
        home.write_text("in the way")
    code = FULL_DISK + LIST if fault == "full" else LIST
    env = os.environ | {"XDG_CACHE_HOME": str(home), "TMPDIR": str(temporary), "FULL": str(home)}
    env = {name: value for name, value in env.items() if name != "POCL_CACHE_DIR"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        check=True,
    )
    platforms, used = done.stdout.splitlines()
    assert opencl_found().platform in platforms.split(",")
    folder = Path(used)
    assert not list(temporary.glob("coexec-*")) and not list(home.glob("*/drafts/*"))
    assert temporary in folder.parents if fault else home in folder.parents


FULL = r"PoCL needs 16.0 MiB .* \(No space left on device\); make room there"


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    opencl_name()  # has passed its trial before
    monkeypatch.setattr(pocl, "_no_room", lambda folder: os.strerror(errno.ENOSPC))


@pytest.mark.usefixtures("full")
def test_a_device_without_room_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=f"is unusable now: {FULL}"):
        InferenceSession(small_network("swish", as_model=True), devices=[opencl_name()])


@pytest.mark.usefixtures("full")
def test_a_disk_that_becomes_full_leaves_the_model_to_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tried, "unusable", lambda device: None)
    proto = small_network("swish", as_model=True)
    with pytest.warns(DegradedWarning, match=FULL):
        session = InferenceSession(proto, devices=[opencl_name()], planner="single", cache=tmp_path)
    with session:
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        expected = plain_session(proto).run(None, feeds)[0]
        assert worst_difference(session.run(None, feeds)[0], expected) < 1e-5


@pytest.mark.usefixtures("full")
def test_a_runtime_without_devices_says_that_it_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platforms, "_handles", lambda platform: [])
    assert any(re.match(FULL, reason) for reason in platforms.absent())
