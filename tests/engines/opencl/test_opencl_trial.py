"""The trial of an OpenCL device: its kernel, its facts, and what is said of a failure."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyopencl")

from coexec.engines import trial
from coexec.engines.opencl import platforms, tried
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.platforms import DeviceHandle
from coexec.engines.opencl.tried import unusable
from tests.helpers.opencl_gpu import stand_in_gpu


def listed(name: str = "A GPU", driver: str = "1.2") -> DeviceHandle:
    """A GPU as drivers describe it. Nothing can be run there."""
    platform = SimpleNamespace(name="GPUs", version="OpenCL 3.0")
    return DeviceHandle(
        SimpleNamespace(platform=platform, name=name, driver_version=driver, version="CL 3")
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "_verdicts", {})
    return tmp_path / "coexec" / "trials"


def test_a_device_that_another_process_does_not_find_is_unusable() -> None:
    assert re.match(
        r"No such GPU is unusable: a small test kernel was not run, as another process does not "
        r"find the device \[GPUs 1\.2, CL 3\]; update or reinstall the driver, after which coexec "
        r"devices --fresh tries",
        str(unusable(listed("No such GPU"))),
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("v.x, 2.0f", "v.x, 3.0f", r"gave wrong numbers \(1020, .* for 1028, 1030\)"),
        ("mad(", "no_such_function(", r"failed \(.*error:.*no_such_function"),
    ],
    ids=["numbers", "build"],
)
def test_numbers_and_builds_are_checked(
    old: str, new: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pocl = stand_in_gpu()
    monkeypatch.setattr(tried, "devices", lambda: [pocl])
    assert tried.attempt(pocl.name, pocl.driver) == ""
    monkeypatch.setattr(tried, "_SOURCE", tried._SOURCE.replace(old, new))
    assert re.match(reason, tried.attempt(pocl.name, pocl.driver))


def test_a_verdict_is_of_one_driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_tried", lambda *_: "failed")
    assert unusable(listed()) is not None
    monkeypatch.setattr(trial, "_tried", lambda *_: "")
    assert unusable(listed()) is not None
    assert unusable(listed(driver="1.3")) is None
    assert len(list(folder.iterdir())) == 2


def test_binaries_of_another_driver_are_not_read(tmp_path: Path) -> None:
    keys = {
        Binaries(listed(driver=driver), None, tmp_path)._key("source", "options")
        for driver in ("1.2", "1.3", "1.2")
    }
    assert len(keys) == 2


def test_gpus_alone_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    handles = [
        SimpleNamespace(name=kind, type=getattr(cl.device_type, kind))
        for kind in ("CPU", "ACCELERATOR", "GPU")
    ]
    platform = SimpleNamespace(get_devices=lambda: handles)
    monkeypatch.setattr(cl, "get_platforms", lambda: [platform])
    assert [found.name for found in platforms.devices()] == ["GPU"]
