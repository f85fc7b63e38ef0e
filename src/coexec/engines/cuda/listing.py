"""The GPUs that CUDA finds, listed by a process of its own.

A process that has started CUDA leaves its forked children without CUDA. A program may use coexec on
CPU cores only, and CUDA by another library in forked children. So a process starts CUDA when it
opens a GPU, and not when it lists GPUs.

The list is kept for a day, as long as it has the same facts: the version of the bindings, the
driver, the device files, and the variables that hide GPUs. A failure is kept for some minutes.
"""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coexec.codec import decode, encode
from coexec.engines import trial
from coexec.engines.cuda.driver import CudaError, gpus

_DRIVER = Path("/proc/driver/nvidia/version")
_DEVICES = Path("/dev")
_WSL = Path("/usr/lib/wsl/lib")
_FAILURE_LASTS_S = 300.0
"""The driver may not be ready yet; but a program that asks a driver that hangs waits for a minute.
"""


@dataclass(frozen=True)
class ListedGpu:
    """A GPU that CUDA finds."""

    name: str
    identity: str
    """Its UUID in hexadecimal digits."""
    version: str
    """The version of CUDA that the driver supports."""
    memory_bytes: int
    compute_units: int
    capability: str
    unusable: str | None
    """Why it cannot be used, and the remedy."""


@dataclass(frozen=True)
class Listing:
    """The GPUs of this machine, as CUDA lists them."""

    gpus: tuple[ListedGpu, ...] = ()
    failure: str = ""
    """Why CUDA does not start; "" if it does, and where there is no GPU of NVIDIA."""


def listing(bindings: str) -> Listing:
    """The GPUs. ``bindings``: the version of NVIDIA's bindings."""
    facts = {"list": "cuda", "bindings": bindings, "machine": dict(_machine())}
    return _read(trial.answer("coexec.engines.cuda.listing:listed", (), facts, _lasts_s))


def _lasts_s(text: str) -> float:
    return _FAILURE_LASTS_S if _read(text).failure else trial.FAILURE_LASTS_S


def _read(text: str) -> Listing:
    try:
        return decode(Listing, json.loads(text))
    except ValueError:  # it has crashed, or has not ended
        return Listing(failure=f"listing its GPUs {text}")


def _machine() -> Iterator[tuple[str, str]]:
    """What the list depends on, as far as it is known without CUDA."""
    yield "host", platform.node()
    try:
        yield "driver", _DRIVER.read_text()
    except OSError:
        yield "driver", ""
    # Not nvidia-uvm, which the first start of CUDA may make.
    for pattern in ("nvidia[0-9]*", "nvidia-caps/*", "dxg"):
        yield pattern, " ".join(sorted(path.name for path in _DEVICES.glob(pattern)))
    for path in sorted(_WSL.glob("libcuda.so*")):  # it is Windows that has the driver
        with suppress(OSError):
            yield path.name, f"{path.stat().st_size} {path.stat().st_mtime}"
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        yield name, os.environ.get(name, "")


def listed() -> str:
    """The `Listing` as text, by starting CUDA in this process."""
    try:
        found = Listing(
            tuple(
                ListedGpu(
                    gpu.name,
                    gpu.identity,
                    gpu.version,
                    gpu.memory_bytes,
                    gpu.compute_units,
                    ".".join(map(str, gpu.capability)),
                    gpu.unusable,
                )
                for gpu in gpus()
            )
        )
    except CudaError as error:
        found = Listing() if error.is_without_gpu else Listing(failure=str(error))
    return json.dumps(encode(found))
