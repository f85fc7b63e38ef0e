"""PoCL: its threads start when OpenCL is loaded, and compute for all its devices in the process.

The thread that launches kernels does not compute. Sub-devices (``clCreateSubDevices``) do not give
several sets of cores: PoCL 3.0 runs the kernels of any sub-device on all of its threads.

PoCL keeps 128 kernels loaded, for all programs of a process together. In PoCL 3.0 a kernel whose
binary was requested stays loaded for ever: ``clGetProgramInfo`` counts it as running and never as
ended. When all 128 are such kernels, each launch loads its kernel from disk, which takes 0.1 ms.

PoCL compiles through files. Without a folder for them it has no devices. When its compiler cannot
write a file, because the disk is full, it ends the process.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from coexec.cache import DRAFTS, default_cache_folder, process_folder, substitute
from coexec.engines.opencl.cpu_runtime import CoreBinding, CpuRuntime, bind
from coexec.engines.opencl.pocl_cpu import override_cpu_name
from coexec.errors import DeviceError
from coexec.extras import install
from coexec.units import format_bytes

_THREADS = "POCL_MAX_PTHREAD_COUNT"
_FOLDER = "POCL_CACHE_DIR"
_ROOM_BYTES = 16 << 20
"""More than the files of a kernel take while it is compiled (1 MB)."""


class Pocl(CpuRuntime):
    """PoCL: one set of cores at a time, and one number of threads as long as the process exists.

    On fewer cores than threads, several threads share a core.
    """

    binds = True
    most_binaries = 64
    remedy = (
        f"install a newer PoCL in place of this one, or a runtime that knows newer CPUs: "
        f"{install('intel-opencl')}"
    )

    def __init__(self) -> None:
        super().__init__("PoCL")
        self._workers: Sequence[int] = ()
        self._threads = 0
        self._folder = Path()

    def variables(self, threads: int) -> Mapping[str, str]:
        self._threads = int(os.environ.get(_THREADS, threads))
        self._folder = Path(os.environ.get(_FOLDER) or self._own_folder())
        return {_THREADS: str(self._threads), _FOLDER: str(self._folder)}

    def _own_folder(self) -> Path:
        """A folder that is removed when this process has ended: coexec's cache has the kernels."""
        cache = default_cache_folder()
        drafts = cache / DRAFTS
        with suppress(OSError):
            drafts.mkdir(parents=True, exist_ok=True)
            folder = process_folder(drafts) / "pocl"
            if _no_room(folder) is None:
                return folder
        return (substitute(cache) or cache) / "pocl"

    def check_room(self) -> None:
        if (reason := _no_room(self._folder)) is not None:
            raise DeviceError(
                f"PoCL needs {format_bytes(_ROOM_BYTES)} for temporary files in {self._folder}, "
                f"which cannot be written ({reason}); make room there, or name a folder on another "
                f"disk in the environment variable {_FOLDER}"
            )

    def pool(self, cores: Sequence[int]) -> str:
        return self.title

    def loaded(self, started: Sequence[int]) -> None:
        self._workers = started

    def prepare(self, handle: Any) -> str | None:
        # One binary for all group sizes. Else PoCL compiles each kernel a second time, for its
        # group size, when it first runs. That binary is in PoCL's own cache, not in coexec's.
        os.environ.setdefault("POCL_WORK_GROUP_SPECIALIZATION", "0")
        return override_cpu_name(handle)

    def _binding(self, handle: Any, cores: tuple[int, ...]) -> CoreBinding:
        if len(cores) > self._threads:
            raise DeviceError(
                f"PoCL has {self._threads} threads in this process, so it cannot compute on "
                f"{len(cores)} cores; open the device with the most cores first, or use another "
                f"process"
            )
        if in_use := self._elsewhere(cores):
            raise DeviceError(
                f"PoCL's threads in this process compute on core {', '.join(map(str, in_use))}; a "
                f"second device of PoCL needs another process, or that one closed. Intel's runtime "
                f"({install('intel-opencl')}) has a device for each core"
            )
        bind(self._workers, [{core} for core, _ in zip(cycle(cores), self._workers, strict=False)])
        return CoreBinding(handle, cores, cores, by_itself=bool(self._workers))


def _no_room(folder: Path) -> str | None:
    """Why PoCL cannot write a kernel's files in ``folder``; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_BYTES)
    except OSError as error:
        return error.strerror or str(error)
    return None
