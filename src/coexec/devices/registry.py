"""The kinds of device, and devices by the names that users write.

cpu:0-3       cores 0, 1, 2 and 3 as one cluster
cpu:0,2       cores 0 and 2
null:0        computes nothing; for tests
reference:0   slow, exact; for tests
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version

from coexec import hardware
from coexec.devices import detect
from coexec.devices.base import Device
from coexec.errors import DeviceError

__all__ = ["KINDS", "default_names", "describe", "open_device", "open_devices", "split_names"]


def _cpu(spec: hardware.Device) -> Device:
    from coexec.devices.ort import CpuCluster

    return CpuCluster(spec)


def _null(spec: hardware.Device) -> Device:
    from coexec.devices.null import NullDevice

    return NullDevice(spec)


def _reference(spec: hardware.Device) -> Device:
    from coexec.devices.reference import ReferenceDevice

    return ReferenceDevice(spec)


KINDS: Mapping[str, tuple[str | None, Callable[[hardware.Device], Device]]] = {
    "cpu": ("onnxruntime", _cpu),
    "null": (None, _null),
    "reference": ("onnx", _reference),
}
"""By kind: the distribution of its engine, and what opens it."""

_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def split_names(text: str) -> list[str]:
    """ "cpu:0-1,3,cpu:2" as ["cpu:0-1,3", "cpu:2"]."""
    parts = re.split(r",(?=\s*[A-Za-z])", text.strip().strip(","))
    return [part.strip() for part in parts if part.strip()]


def default_names() -> list[str]:
    """A device for each cluster of equal cores of this machine, the fastest first."""
    return [_cpu_name(cores) for cores, _ in detect.clusters()]


def _cpu_name(cores: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "cpu:" + ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def describe(name: str) -> hardware.Device:
    """The device that ``name`` means on this machine.

    Raises:
        DeviceError: unknown kind, malformed name, or cores that this machine does not have.
    """
    kind, _, rest = name.partition(":")
    if kind not in KINDS:
        raise DeviceError(f"unknown device {name!r}: its kind {kind!r} is none of "
                          f"{', '.join(KINDS)}; coexec devices lists this machine's")  # fmt: skip
    distribution, _ = KINDS[kind]
    engine = f"{distribution} {_version(distribution)}" if distribution else kind
    spec = hardware.Device(name, kind, memory_bytes=detect.memory_bytes(), engine=engine)
    if kind != "cpu":
        return spec
    cores = _parse_cores(name, rest)
    speeds = {core: hertz for members, hertz in detect.clusters(cores=cores) for core in members}
    known = [hertz for hertz in speeds.values() if hertz]
    return replace(
        spec,
        cores=cores,
        processor=_processor(),
        max_frequency_hz=min(known) if known else None,
    )


def _parse_cores(name: str, text: str) -> tuple[int, ...]:
    if not _CORES.fullmatch(text):
        raise DeviceError(f"device {name!r} names no cores; write for example cpu:0 or cpu:0-3")
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        stop = int(last or first)
        if stop < int(first) or stop - int(first) > 4096:
            raise DeviceError(f"device {name!r}: {part!r} is not a range of cores; write the "
                              f"lower one first, for example cpu:0-3")  # fmt: skip
        cores += range(int(first), stop + 1)
    if len(set(cores)) != len(cores):
        raise DeviceError(f"device {name!r} names a core twice; name each one once")
    have = _allowed_cores()
    for core in cores:
        if core not in have:
            raise DeviceError(
                f"device {name!r} wants core {core}, but this process may use only "
                f"{_cpu_name(sorted(have))[4:]} ({len(have)} cores); coexec devices lists them"
            )
    return tuple(sorted(cores))


def _allowed_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


@cache
def _version(distribution: str) -> str:
    return version(distribution)


@cache
def _processor() -> str:
    return detect.processor_name()


def open_device(spec: hardware.Device) -> Device:
    """The device that ``spec`` describes."""
    return KINDS[spec.kind][1](spec)


def open_devices(names: Iterable[str]) -> tuple[Device, ...]:
    """Open devices that may be used together.

    Raises:
        DeviceError: a name is wrong, or two devices share a core.
    """
    system = hardware.System(tuple(describe(name) for name in names))
    return tuple(open_device(spec) for spec in system.devices)
