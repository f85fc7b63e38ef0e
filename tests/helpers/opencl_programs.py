"""OpenCL on CPU cores, with kernels for cores or for a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.opencl import compiling, device
from coexec.engines.opencl.binaries import OPTIONS
from coexec.engines.opencl.device import OpenClDevice
from coexec.engines.options import parsed
from coexec.engines.registry import describe, load_engine
from tests.helpers.needs_opencl import opencl_found, opencl_name, opencl_options


@contextmanager
def unoptimised() -> Iterator[None]:
    """Make devices that are opened in the block compile without optimisation, and without helper
    processes, whose start takes longer than such a compilation. Results of kernels are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "OPTIONS", f"{OPTIONS} -cl-opt-disable")
        patch.setattr(compiling, "_helpers", lambda *_: 0)
        yield


def opened(folder: Path | None, arch: Architecture | None = None, **options: str) -> OpenClDevice:
    """OpenCL on one core with separate memory, as a GPU has, and kernels for the core or for
    ``arch``. Skips the test if no runtime works.

    Kernels for ``arch`` are `unoptimised`: PoCL takes seconds to unroll a GPU's work groups on a
    core, and the speed of these kernels does not matter.
    """
    all_options = opencl_options(memory="own", **options)
    spec = describe(opencl_name(), all_options)
    chosen = parsed(load_engine("opencl"), all_options)
    with nullcontext() if arch is None else unoptimised():
        return OpenClDevice(spec, spec.engine, opencl_found(), chosen, folder, arch)


def on_cpu(binaries: Path, *, as_gpu: bool = False) -> OpenClDevice:
    """OpenCL on one core. With ``as_gpu`` it has blocks of four channels, and work items share
    rows."""
    gpu = Architecture("nvidia", 4, compute_units=16)
    return opened(binaries, gpu if as_gpu else None)
