"""Configurations: sets of devices, with their engines, that a plan can use together."""

from collections.abc import Sequence

from coexec.engines import detect
from coexec.engines.names import cpu_name, default_names, parse, without_engine
from coexec.engines.registry import describe, processors
from coexec.hardware.hardware import System
from coexec.selection.rules import RULES, Rules

__all__ = ["Configuration", "configurations"]

Configuration = tuple[str, ...]
"""Names of devices that are used together. A name without an engine means the first engine."""

_MOST_NARROW = 4
"""Largest number of clusters of one core each: no network has enough branches for more."""


def configurations(
    devices: Sequence[str] | None = None, rules: Rules = RULES
) -> list[Configuration]:
    """Configurations worth trying, each once.

    For named devices: all together, each alone, and the CPU clusters joined to one device. Without
    names, for the machine: all cores as one device; the clusters of equal cores; if there is only
    one cluster, its halves and its single cores; each of these with and without the GPUs; and the
    GPUs alone. CPU configurations are repeated with every further engine for CPU cores, and there
    is one with all cores but one on the first engine and the last core on the further engine. A
    device that is named with its engine keeps it.

    Raises:
        DeviceError: a name is wrong.
    """
    further = _further_engines() if rules.further_engines else []
    candidates = _of_machine(further) if devices is None else _of_names(devices, further)
    return list(dict.fromkeys(candidates))


def _of_names(names: Sequence[str], further_engines: Sequence[str]) -> list[Configuration]:
    System(tuple(describe(name) for name in names))  # refuses what cannot be used together
    clusters = [name for name in names if parse(name).kind == "cpu"]
    free = [name for name in clusters if not parse(name).engines]
    non_cpu = tuple(name for name in names if name not in clusters)
    named: list[Configuration] = [tuple(names)]
    if len(clusters) > 1 and len(free) == len(clusters):
        joined = cpu_name(sorted(core for name in free for core in describe(name).cores))
        named += [(joined,), (joined, *non_cpu)]
    named += [(name,) for name in names]
    return named + [
        other
        for engine in further_engines
        for c in named
        for other in [_with(engine, c)]
        if other != c
    ]


def _of_machine(further_engines: Sequence[str]) -> list[Configuration]:
    cores = detect.usable_cores()
    clusters = default_names()
    on_cpu: list[Configuration] = [(cpu_name(cores),), tuple(clusters)]
    if len(clusters) == 1 and len(cores) > 1:
        half = (len(cores) + 1) // 2
        on_cpu.append((cpu_name(cores[:half]), cpu_name(cores[half:])))
        if len(cores) <= _MOST_NARROW:
            on_cpu.append(tuple(cpu_name([core]) for core in cores))
    gpus = tuple(driven.name for driven in processors("gpu") if driven.usable)
    for_machine = list(on_cpu)
    if gpus:
        for_machine += [gpus, *((*names, *gpus) for names in on_cpu)]
    for engine in further_engines:
        for_machine += [_with(engine, names) for names in on_cpu]
        if len(cores) > 1:
            for_machine.append((cpu_name(cores[:-1]), f"{cpu_name(cores[-1:])}/{engine}"))
    return for_machine


def _further_engines() -> list[str]:
    """Engines for CPU cores, except the first."""
    return [engine for driven in processors("cpu") for engine in driven.usable][1:]


def _with(engine: str, names: Configuration) -> Configuration:
    """The same devices, with ``engine`` for CPU devices that are named without an engine."""
    return tuple(
        f"{name}/{engine}" if parse(name).kind == "cpu" and without_engine(name) == name else name
        for name in names
    )
