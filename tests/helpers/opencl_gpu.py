"""A GPU for tests of the OpenCL engine: PoCL on a CPU core, which only tests take for one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from coexec.engines.cuda.engine import Cuda
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.opencl import platforms
from coexec.engines.opencl.engine import OpenCl
from coexec.engines.opencl.platforms import DeviceHandle
from coexec.engines.options import parsed
from coexec.engines.registry import load_engine
from coexec.errors import CoexecError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.selection import background, prepare
from tests.helpers.pocl_cpu import override_cpu_name

GPU = "gpu:0/opencl"
"""The name of the stand-in, see `stand_in`."""
NVIDIA = Architecture("nvidia", 4, compute_units=16)
_FILES = tempfile.TemporaryDirectory(prefix="coexec-tests-pocl-", ignore_cleanup_errors=True)
for _name, _value in {
    "POCL_MAX_PTHREAD_COUNT": "1",
    "POCL_CACHE_DIR": _FILES.name,
    "POCL_KERNEL_CACHE": "0",
    "POCL_WORK_GROUP_SPECIALIZATION": "0",  # else each kernel is compiled again for its group
}.items():
    os.environ.setdefault(_name, _value)


def stand_in_gpu() -> DeviceHandle:
    """PoCL's device. Skips the test where it does not work."""
    gpu, reason = _found()
    if gpu is None:
        pytest.skip(f"PoCL does not work here: {reason}")
    return gpu


@contextmanager
def stand_in() -> Iterator[None]:
    """In the block, this machine has a GPU, `GPU`: PoCL's device. It has passed its trial, compiles
    without optimisation, and no process of its own plans for it."""
    stand_in_gpu()
    with unoptimised(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(platforms, "is_gpu", _is_pocl)
        patch.setattr(OpenCl, "needs_trial", False)
        patch.setattr(Cuda, "processors", lambda self, kind: [])
        plan_in_this_process(patch)
        yield


@contextmanager
def unoptimised() -> Iterator[None]:
    """Make devices that are opened in the block compile without optimisation: PoCL takes seconds to
    unroll a GPU's work groups on a core. Results of kernels are the same."""
    pytest.importorskip("pyopencl")
    from coexec.engines.opencl import device

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "OPTIONS", f"{device.OPTIONS} -cl-opt-disable")
        yield


def opened(folder: Path | None, arch: Architecture = NVIDIA, **options: str) -> Any:
    """The engine on PoCL's device, with kernels for ``arch``: an ``OpenClDevice``. Skips the test
    where PoCL does not work."""
    gpu = stand_in_gpu()
    from coexec.engines.opencl.device import OpenClDevice

    spec = Device("gpu:0", "gpu", EngineInfo("opencl", "1", "opencl on gpu:0"))
    chosen = parsed(load_engine("opencl"), {"opencl": options})
    with unoptimised():
        return OpenClDevice(spec, spec.engine, gpu, chosen, folder, arch)


def plan_in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Plan in the background without a process of its own, which would not find the GPU."""

    def planned(job: Any, source: Any, settings: Any, again: bool) -> Exception | None:
        try:
            prepare.prepare(source, settings, again)
        except CoexecError as error:
            return error
        return None

    patch.setattr(background, "error_of_planning", planned)


def _is_pocl(handle: Any) -> bool:
    return bool(handle.platform.name.strip() == "Portable Computing Language")


@cache
def _found() -> tuple[DeviceHandle | None, str]:
    """PoCL's device, or None and the reason why it does not work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platforms, "is_gpu", _is_pocl)
        try:
            (gpu, *_) = platforms.devices()
        except (CoexecError, ValueError) as error:
            return None, str(error) or "it is not installed"
        override_cpu_name(gpu.handle)
        # Not by the engine: what a test has changed in it must not decide for all later ones.
        import pyopencl

        try:
            pyopencl.Program(gpu.context(), "__kernel void nothing() {}").build()
        except pyopencl.Error as error:
            return None, str(error)
        return gpu, ""
