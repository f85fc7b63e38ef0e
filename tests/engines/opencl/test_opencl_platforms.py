"""The GPUs that OpenCL drives, and what their compiled kernels depend on."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyopencl")

from coexec.engines.opencl import platforms
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.platforms import DeviceHandle


def listed(driver: str) -> DeviceHandle:
    """A GPU as drivers describe it. Nothing can be run there."""
    platform = SimpleNamespace(name="GPUs")
    return DeviceHandle(
        SimpleNamespace(platform=platform, name="A GPU", driver_version=driver, version="CL 3")
    )


def test_binaries_of_another_driver_are_not_read(tmp_path: Path) -> None:
    keys = {
        Binaries(listed(driver), None, tmp_path)._key("source", "options")
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
