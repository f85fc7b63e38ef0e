"""The kinds of device, and devices by the names that users write.

cpu:0-3       cores 0, 1, 2 and 3 as one cluster
cpu:0,2       cores 0 and 2
gpu:0         the first OpenCL device
gpu:0@1       the same if it is a CPU runtime (PoCL, Intel's): on core 1
null:0        computes nothing; for tests
reference:0   slow, exact; for tests
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from coexec.engines import detect
from coexec.engines.base import Device, Options
from coexec.errors import DeviceError, UsageError
from coexec.system import hardware

__all__ = [
    "KINDS",
    "cpu_name",
    "default_names",
    "describe",
    "gpu_options",
    "open_device",
    "open_devices",
    "split_names",
    "whole_cpu",
]


def _cpu(spec: hardware.Device, options: "Options") -> Device:
    from coexec.engines.onnxruntime.device import CpuCluster

    return CpuCluster(spec)


def _gpu(spec: hardware.Device, options: "Options") -> Device:
    from coexec.engines.opencl.device import OpenClDevice
    from coexec.engines.opencl.platforms import devices

    return OpenClDevice(spec, devices()[_number(spec.name)], options)


def _null(spec: hardware.Device, options: "Options") -> Device:
    from coexec.engines.null import NullDevice

    return NullDevice(spec)


def _reference(spec: hardware.Device, options: "Options") -> Device:
    from coexec.engines.reference import ReferenceDevice

    return ReferenceDevice(spec)


KINDS: Mapping[str, tuple[str | None, Callable[[hardware.Device, Options], Device]]] = {
    "cpu": ("onnxruntime", _cpu),
    "gpu": ("pyopencl", _gpu),
    "null": (None, _null),
    "reference": ("onnx", _reference),
}
"""By kind: the distribution of its engine, and what opens it."""

_LOWERING = ", lowered in form 3"
"""Raised when ONNX Runtime is given something else: lowered models and profiles are made anew."""

_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


_CHOICES: Mapping[str, Sequence[str]] = {
    "precision": ("fp32", "fp16"),
    "waiting": ("passive", "active"),
    "tuning": ("fast", "none", "exhaustive"),
    "storage": ("auto", "buffer", "image"),
}


def gpu_options(texts: Mapping[str, str], binaries: Path | None = None) -> Options:
    """The options that ``texts`` name, the others at their defaults.

    Raises:
        UsageError: an option or a value that does not exist.
    """
    for name, value in texts.items():
        if name not in _CHOICES:
            raise UsageError(f"GPU devices have no option {name!r}; they have "
                             f"{', '.join(_CHOICES)}")  # fmt: skip
        if value not in _CHOICES[name]:
            raise UsageError(f"{name}={value!r}: it is one of {', '.join(_CHOICES[name])}")
    chosen = {name: choices[0] for name, choices in _CHOICES.items()} | dict(texts)
    return Options(**chosen, binaries=binaries)


def split_names(text: str) -> list[str]:
    """ "cpu:0-1,3,cpu:2" as ["cpu:0-1,3", "cpu:2"]."""
    parts = re.split(r",(?=\s*[A-Za-z])", text.strip().strip(","))
    return [part.strip() for part in parts if part.strip()]


def default_names() -> list[str]:
    """A device for each cluster of equal cores of this machine, the fastest first."""
    return [cpu_name(cores) for cores, _ in detect.clusters()]


def whole_cpu() -> str:
    """All usable cores of this machine as one device."""
    return cpu_name(detect.usable_cores())


def cpu_name(cores: Sequence[int]) -> str:
    """The name of a cluster: (0, 1, 3) as "cpu:0-1,3"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return "cpu:" + ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def describe(name: str, options: Options | None = None) -> hardware.Device:
    """The device that ``name`` means on this machine.

    Raises:
        DeviceError: unknown kind, malformed name, or cores that this machine does not have.
    """
    kind, _, rest = name.partition(":")
    if kind not in KINDS:
        raise DeviceError(f"unknown device {name!r}: its kind {kind!r} is none of "
                          f"{', '.join(KINDS)}; coexec devices lists this machine's")  # fmt: skip
    if kind == "gpu":
        return _describe_gpu(name, rest, options or Options())
    distribution, _ = KINDS[kind]
    engine = f"{distribution} {_version(distribution)}" if distribution else kind
    engine += f", build {_build()}{_LOWERING}" if kind == "cpu" else ""
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
        features=detect.processor_features(),
    )


def _describe_gpu(name: str, rest: str, options: Options) -> hardware.Device:
    from coexec.engines.opencl.platforms import absent, devices, start
    from coexec.engines.opencl.trial import unusable

    _, at, cores_text = rest.partition("@")
    cores = _parse_cores(name, cores_text) if at else ()
    start(cores)
    found = devices()
    if _number(name) >= len(found):
        listed = ", ".join(f"gpu:{i} ({f.name})" for i, f in enumerate(found)) or "none"
        why = " ".join(f"{reason}." for reason in absent()) or (
            "pip install 'coexec[pocl]' or 'coexec[intel-opencl]' brings a runtime for CPU cores"
        )
        raise DeviceError(f"device {name!r} does not exist; this machine's OpenCL devices: "
                          f"{listed}. {why}")  # fmt: skip
    chosen = found[_number(name)]
    if at and not chosen.on_cpu:
        raise DeviceError(f"device {name!r}: {chosen.name} has no CPU cores to choose; "
                          f"write gpu:{_number(name)}")  # fmt: skip
    if (reason := unusable(chosen)) is not None:
        raise DeviceError(f"device {name!r}: {reason}")
    if chosen.on_cpu and not at:
        cores = detect.usable_cores()
    return hardware.Device(
        name, "gpu", cores, f"{name} memory", chosen.memory_bytes, None, chosen.name,
        f"coexec OpenCL {_version('coexec')}, {chosen.driver}", options.precision,
        detect.processor_features() if chosen.on_cpu else "",
    )  # fmt: skip


def _number(name: str) -> int:
    text = name.partition(":")[2].partition("@")[0]
    if not text.isdecimal():
        raise DeviceError(f"device {name!r} has no number; write for example gpu:0 or gpu:0@1")
    return int(text)


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
                f"{cpu_name(sorted(have))[4:]} ({len(have)} cores); coexec devices lists them"
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
def _build() -> str:
    """Tells builds of ONNX Runtime with equal versions apart: their kernels differ."""
    import onnxruntime

    return hashlib.sha256(onnxruntime.get_build_info().encode()).hexdigest()[:8]


@cache
def _processor() -> str:
    return detect.processor_name()


def open_device(spec: hardware.Device, options: Options | None = None) -> Device:
    """The device that ``spec`` describes."""
    return KINDS[spec.kind][1](spec, options or Options())


def open_devices(names: Iterable[str], options: Options | None = None) -> tuple[Device, ...]:
    """Open devices that may be used together.

    Raises:
        DeviceError: a name is wrong, or two devices share a core.
    """
    system = hardware.System(tuple(describe(name, options) for name in names))
    return tuple(open_device(spec, options) for spec in system.devices)
