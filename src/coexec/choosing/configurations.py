"""The ways in which the processors of a machine can be used as devices."""

from collections.abc import Sequence

from coexec.engines import detect
from coexec.engines.registry import cpu_name, default_names, describe
from coexec.errors import DeviceError

__all__ = ["Configuration", "configurations"]

Configuration = tuple[str, ...]
"""Names of devices that are used together."""

_MOST_NARROW = 4
"""Clusters of one core each: with more, no network has enough branches."""


def configurations(devices: Sequence[str] | None = None) -> list[Configuration]:
    """Configurations worth considering, each once.

    Of the named devices: all together, each alone, and the CPU clusters joined to one. By default,
    of the machine: all cores as one device, its clusters of equal cores, a cluster of equal cores
    in halves and in single cores, each of these beside the GPUs; and, where a CPU runtime of OpenCL
    is installed, all cores but one beside its first device on the last.

    Raises:
        DeviceError: a name is wrong.
    """
    found = _of_machine() if devices is None else _of_names(devices)
    return list(dict.fromkeys(found))


def _of_names(names: Sequence[str]) -> list[Configuration]:
    described = [describe(name) for name in names]
    clusters = [d for d in described if d.kind == "cpu"]
    others = tuple(d.name for d in described if d.kind != "cpu")
    found: list[Configuration] = [tuple(names)]
    if len(clusters) > 1:
        joined = cpu_name(sorted(core for d in clusters for core in d.cores))
        found += [(joined,), (joined, *others)]
    return found + [(name,) for name in names]


def _of_machine() -> list[Configuration]:
    cores = detect.usable_cores()
    clusters = default_names()
    on_cpu: list[Configuration] = [(cpu_name(cores),), tuple(clusters)]
    if len(clusters) == 1 and len(cores) > 1:
        half = (len(cores) + 1) // 2
        on_cpu.append((cpu_name(cores[:half]), cpu_name(cores[half:])))
        if len(cores) <= _MOST_NARROW:
            on_cpu.append(tuple(cpu_name([core]) for core in cores))
    gpus, on_core = _gpus()
    found = list(on_cpu)
    if gpus:
        found += [tuple(gpus), *((*names, *gpus) for names in on_cpu)]
    if on_core and len(cores) > 1:
        found.append((cpu_name(cores[:-1]), f"{on_core}@{cores[-1]}"))
    return found


def _gpus() -> tuple[list[str], str | None]:
    """The real GPUs, and the first CPU runtime; without those that do not work."""
    try:
        from coexec.engines.opencl.platforms import devices, start
        from coexec.engines.opencl.trial import unusable

        start(detect.usable_cores()[-1:])
        found = devices()
    except DeviceError:
        return [], None  # without OpenCL there are CPU devices
    names = {f"gpu:{i}": device for i, device in enumerate(found) if unusable(device) is None}
    gpus = [name for name, device in names.items() if not device.on_cpu]
    return gpus, next((name for name, device in names.items() if device.binds), None)
