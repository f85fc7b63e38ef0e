"""Names of devices as users write them: a processor, and an optional engine behind a slash.

cpu:0-3           cores 0, 1, 2 and 3 as one device
cpu:0,2           cores 0 and 2
gpu:0             the first GPU
cpu:1/cpp      core 1, with this engine
gpu:0/ort-cuda    the first GPU, with an execution provider of ONNX Runtime
cpu:1/openvino:bf16   the same, and the engine computes in this precision
null:0            computes nothing; for tests
reference:0       slow, exact; for tests
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from coexec.engines import detect
from coexec.errors import DeviceError, DeviceNameError
from coexec.precision import PRECISIONS
from coexec.units import format_numbers

_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


class Request(NamedTuple):
    """The parts of a device's name."""

    device: str
    kind: str
    suffix: str
    """The text behind the colon."""
    engine: str
    """Name of an engine; empty: the first engine that drives the device."""
    precision: str = ""
    """Precision in which the engine computes; empty: as its options say, by default float32."""


def parse(text: str) -> Request:
    """Split a device's name into its parts.

    Raises:
        DeviceNameError: the name is malformed.
    """
    device, stroke, engine = text.strip().partition("/")
    kind, colon, number = device.partition(":")
    if not colon or not kind:
        raise DeviceNameError(
            f"{text!r} is no device; write for example cpu:0-3, gpu:0 or "
            f"cpu:0/cpp; coexec devices lists this machine's"
        )
    if "+" in engine:
        each = ",".join(f"{device}/{name.strip()}" for name in engine.split("+"))
        raise DeviceNameError(
            f"device {text!r} has several engines; each is a device of its own that shares the "
            f"processor: write {each}"
        )
    engine, colon, precision = engine.partition(":")
    if stroke and not engine:
        raise DeviceNameError(
            f"device {text!r} does not name its engine; write for example cpu:0/cpp"
        )
    if colon and precision not in PRECISIONS:
        raise DeviceNameError(
            f"device {text!r} names the precision {precision!r}, which is none of "
            f"{', '.join(PRECISIONS)}"
        )
    return Request(device, kind, number, engine, precision)


def engine_of_provider(provider: str) -> str:
    """The engine of an execution provider of ONNX Runtime: "ort-cuda" of CUDAExecutionProvider."""
    return f"ort-{provider.removesuffix('ExecutionProvider').lower()}"


def without_engine(text: str) -> str:
    """The processor's part of a name: "cpu:1" of "cpu:1/cpp"."""
    return text.partition("/")[0]


def split_names(text: str) -> list[str]:
    """ "cpu:0-1,3,cpu:2" as ["cpu:0-1,3", "cpu:2"]."""
    parts = re.split(r",(?=\s*[A-Za-z])", text.strip().strip(","))
    return [part.strip() for part in parts if part.strip()]


def default_names() -> list[str]:
    """A device for each cluster of equal cores of this machine, the fastest first."""
    return [cpu_name(cores) for cores, _ in detect.clusters()]


def whole_cpu() -> str:
    """The name of a device with all usable cores of this machine."""
    return cpu_name(detect.usable_cores())


def cpu_name(cores: Sequence[int]) -> str:
    """The name of a device with these cores: (0, 1, 3) as "cpu:0-1,3"."""
    return f"cpu:{format_numbers(cores)}"


def number_of(request: Request) -> int:
    """The number of a processor other than a CPU: 1 of "gpu:1".

    Raises:
        DeviceNameError: the name has no number.
    """
    if not request.suffix.isdecimal():
        raise DeviceNameError(
            f"device {request.device!r} has no number; write for example {request.kind}:0"
        )
    return int(request.suffix)


def cores_of(request: Request) -> tuple[int, ...]:
    """The cores of "cpu:0-3", ascending.

    Raises:
        DeviceNameError: the name is malformed.
        DeviceError: this process may not use all of the cores.
    """
    name, text = request.device, request.suffix
    if not _CORES.fullmatch(text):
        raise DeviceNameError(f"device {name!r} names no cores; write for example cpu:0 or cpu:0-3")
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        stop = int(last or first)
        if stop < int(first) or stop - int(first) > 4096:
            raise DeviceNameError(
                f"device {name!r}: {part!r} is not a range of cores; write the "
                f"lower one first, for example cpu:0-3"
            )
        cores += range(int(first), stop + 1)
    if len(set(cores)) != len(cores):
        raise DeviceNameError(f"device {name!r} names a core twice; name each one once")
    allowed = _allowed_cores()
    for core in cores:
        if core not in allowed:
            raise DeviceError(
                f"device {name!r} wants core {core}, but this process may use only "
                f"{cpu_name(sorted(allowed))[4:]} ({len(allowed)} cores); coexec devices lists them"
            )
    return tuple(sorted(cores))


def _allowed_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))
