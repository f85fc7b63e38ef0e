"""The ways in which the processors of a machine, and the engines on them, can be used."""

from collections.abc import Sequence

from coexec.engines import detect
from coexec.engines.names import cpu_name, default_names, parse, without_engine
from coexec.engines.registry import describe, processors
from coexec.system.hardware import System

__all__ = ["Configuration", "configurations"]

Configuration = tuple[str, ...]
"""Names of devices that are used together. One without an engine has its first."""

_MOST_NARROW = 4
"""Clusters of one core each: with more, no network has enough branches."""


def configurations(devices: Sequence[str] | None = None) -> list[Configuration]:
    """Configurations worth considering, each once.

    Of the named devices: all together, each alone, and the CPU clusters joined to one. By default,
    of the machine: all cores as one device, its clusters of equal cores, a cluster of equal cores
    in halves and in single cores, each of these beside the GPUs. Each of these with every engine
    that drives the cores, and all cores but one beside another engine on the last. A device that
    is named with its engine keeps it.

    Raises:
        DeviceError: a name is wrong.
    """
    found = _of_machine() if devices is None else _of_names(devices)
    return list(dict.fromkeys(found))


def _of_names(names: Sequence[str]) -> list[Configuration]:
    System(tuple(describe(name) for name in names))  # refuses what cannot be used together
    clusters = [name for name in names if parse(name).kind == "cpu"]
    free = [name for name in clusters if not parse(name).engines]
    others = tuple(name for name in names if name not in clusters)
    found: list[Configuration] = [tuple(names)]
    if len(clusters) > 1 and len(free) == len(clusters):
        joined = cpu_name(sorted(core for name in free for core in describe(name).cores))
        found += [(joined,), (joined, *others)]
    found += [(name,) for name in names]
    return found + [other for engine in _further_engines() for c in found
                    for other in [_with(engine, c)] if other != c]  # fmt: skip


def _of_machine() -> list[Configuration]:
    cores = detect.usable_cores()
    clusters = default_names()
    on_cpu: list[Configuration] = [(cpu_name(cores),), tuple(clusters)]
    if len(clusters) == 1 and len(cores) > 1:
        half = (len(cores) + 1) // 2
        on_cpu.append((cpu_name(cores[:half]), cpu_name(cores[half:])))
        if len(cores) <= _MOST_NARROW:
            on_cpu.append(tuple(cpu_name([core]) for core in cores))
    gpus = tuple(driven.name for driven in processors("gpu") if driven.usable)
    found = list(on_cpu)
    if gpus:
        found += [gpus, *((*names, *gpus) for names in on_cpu)]
    for engine in _further_engines():
        found += [_with(engine, names) for names in on_cpu]
        if len(cores) > 1:
            found.append((cpu_name(cores[:-1]), f"{cpu_name(cores[-1:])}/{engine}"))
    return found


def _further_engines() -> list[str]:
    """Engines that work on CPU cores, besides the first."""
    return [engine for driven in processors("cpu") for engine in driven.usable][1:]


def _with(engine: str, names: Configuration) -> Configuration:
    """The same CPU devices with another engine, except where one is named."""
    return tuple(
        f"{name}/{engine}" if parse(name).kind == "cpu" and without_engine(name) == name else name
        for name in names
    )
