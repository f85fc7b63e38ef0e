"""Sets of devices, with their engines, that a plan can use together, and their sets of cores."""

from collections.abc import Iterator, Mapping, Sequence

from coexec.engines import detect
from coexec.engines.names import cpu_name, parse
from coexec.engines.options import EngineOptions
from coexec.engines.registry import Driven, describe, load_engine, processors, untried
from coexec.errors import UsageError
from coexec.hardware.hardware import Device, EngineInfo, Place, System
from coexec.precision import FLOAT32, Precision, allowed
from coexec.rules import RULES, Rules

Configuration = tuple[str, ...]
"""Names of devices that are used together. A name without an engine means the first engine."""


def configurations(
    devices: Sequence[str] | None = None,
    rules: Rules = RULES,
    precision: Precision = FLOAT32,
    options: EngineOptions | None = None,
) -> list[Configuration]:
    """Configurations worth trying, each once.

    For named devices: all together, each alone, and the CPU clusters joined to one device. Without
    names, for the machine: the sets of cores of `core_sets`; each accelerator (GPU, NPU) alone,
    all of them together, and with all cores as up to `Rules.most_beside` devices. Configurations
    are repeated with every further engine of the CPU cores, and with every further engine of the
    accelerators. In two more, the last core or the second half of the cores has the further
    engine, and the other cores the first engine. A device that is named with its engine keeps it.

    Raises:
        DeviceError: a name is wrong.
    """
    if devices is None:
        return list(dict.fromkeys(_of_machine(rules, precision, options)))
    return list(dict.fromkeys(_of_names(devices, rules, precision, options)))


def check_precision(
    precision: Precision,
    devices: Sequence[str] | None = None,
    options: EngineOptions | None = None,
) -> None:
    """Refuse a precision in which nothing here computes. No engine is tried that lists its devices.

    Args:
        devices: names that the user gives; None: all devices of this machine.

    Raises:
        UsageError: no engine has it; the message lists the precisions that are there.
        DeviceError: none of the named devices exists.
    """
    if precision == FLOAT32:
        return
    requests = [parse(name) for name in devices or ()]
    there: list[str] = []
    # Cores come first: GPUs are listed only if no engine of the cores has the precision.
    for kind in dict.fromkeys(request.kind for request in requests) or ("cpu", None):
        for driven in untried(kind):
            named = {r.engine for r in requests if driven.name in (r.kind, r.device)} or {""}
            for engine, processor in driven.by.items():
                if processor.unusable is not None or not {"", engine} & named:
                    continue
                if precision in processor.precisions:
                    return
                there.append(f"{driven.name}/{engine} has {', '.join(processor.precisions)}")
    if not there:  # they do not exist, or their engine does not list them
        described = {name: describe(name, options).engine.precision for name in devices or ()}
        if precision in described.values():
            return
        there = [f"{name} has {own}" for name, own in described.items()]
    where = "these devices" if requests else "this machine"
    raise UsageError(
        f"precision={precision!r}: no engine of {where} computes in it; "
        f"{'; '.join(dict.fromkeys(there))}"
    )


def in_lower_precision(names: Sequence[str], precision: Precision) -> str | None:
    """The first of these devices with an engine that computes in less than ``precision`` allows,
    with that engine in its least precise one: "cpu:0-1/openvino:bf16". None if there is none.

    Args:
        names: of devices, each with its engine or without one.
    """
    for request in map(parse, names):
        for driven in processors(request.kind):
            if driven.name not in (request.kind, request.device):
                continue
            for name in driven.usable:
                lower = [p for p in driven.by[name].precisions if p not in allowed(precision)]
                if lower and request.engine in ("", name):
                    return f"{request.device}/{EngineInfo(name, precision=lower[-1]).label}"
    return None


def accelerators() -> Sequence[str]:
    """Names of this machine's processors that are no CPU cores and work."""
    return [driven.name for driven in processors() if driven.usable and driven.name != "cpu"]


def with_next_engine(name: str, device: Device) -> str | None:
    """The name of the same processor for a plan after this one has failed: an accelerator that is
    named without an engine gets the next engine that works. None if there is none.

    Args:
        name: how the device was requested.
    """
    request = parse(name)
    if request.kind == "cpu" or request.engine:
        return None
    driven = next((d for d in processors(request.kind) if d.name == device.name), None)
    if driven is None:
        return None
    order, own = list(driven.by), device.engine.name
    later = order[order.index(own) + 1 :] if own in order else order
    return next((f"{name}/{engine}" for engine in later if engine in driven.usable), None)


def _of_names(
    names: Sequence[str], rules: Rules, precision: Precision, options: EngineOptions | None
) -> list[Configuration]:
    System(tuple(describe(name, options) for name in names))  # refuses what cannot be together
    clusters = [name for name in names if parse(name).kind == "cpu"]
    free = [name for name in clusters if not parse(name).engine]
    non_cpu = tuple(name for name in names if name not in clusters)
    named: list[Configuration] = [tuple(names)]
    if len(clusters) > 1 and len(free) == len(clusters):
        joined = cpu_name(sorted(core for name in free for core in describe(name, options).cores))
        named += [(joined,), (joined, *non_cpu)]
    named += [(name,) for name in names]
    kinds = dict.fromkeys(parse(name).kind for name in names)
    engines = {kind: _engines(precision, options, kind) for kind in kinds}
    return named + [
        other
        for kind in engines
        for engine in _further(engines[kind], rules)
        for configuration in named
        for other in [_with(engine, configuration, engines[kind])]
        if other != configuration
    ]


def _of_machine(
    rules: Rules, precision: Precision, options: EngineOptions | None
) -> list[Configuration]:
    cores = detect.usable_cores()
    sets = core_sets([members for members, _ in detect.clusters()], detect.partitions())
    on_cpu: list[Configuration] = [tuple(map(cpu_name, devices)) for devices in sets]
    everywhere = [
        names
        for names, devices in zip(on_cpu, sets, strict=True)
        if len(devices) <= rules.most_beside and sum(map(len, devices)) == len(cores)
    ]
    engines = _engines(precision, options)
    cpu = {name: usable for name, usable in engines.items() if name == "cpu"}
    other_engines = {name: usable for name, usable in engines.items() if name not in cpu}
    accelerators = tuple(other_engines)
    for_machine = list(on_cpu)
    for engine in [None, *_further(other_engines, rules)]:
        names = _with(engine, accelerators, other_engines)
        for_machine += [(name,) for name in names]
        if names:
            for_machine += [names, *((*cores_used, *names) for cores_used in everywhere)]
    for engine in _further(cpu, rules):
        for_machine += [_with(engine, names, cpu) for names in on_cpu]
        if len(cores) > 1:
            for_machine.append((cpu_name(cores[:-1]), f"{cpu_name(cores[-1:])}/{engine}"))
        if len(cores) > 2:
            halves = (names for names in everywhere if len(names) == 2)
            for_machine += [(first, f"{second}/{engine}") for first, second in halves]
    return for_machine


Engines = Mapping[str, Sequence[str]]
"""Working engines by processor, the first one first, at the end each in lower precisions; "cpu"
stands for any cores."""


def _engines(
    precision: Precision, options: EngineOptions | None, kind: str | None = None
) -> Engines:
    found = {}
    for driven in processors(kind):
        replaced = {other for name in driven.usable for other in load_engine(name).replaces}
        if usable := [name for name in driven.usable if name not in replaced]:
            lower = _lower(driven, usable, precision, options or {})
            found[driven.name] = (*usable, *lower)
    return found


def _lower(
    driven: Driven, usable: Sequence[str], precision: Precision, options: EngineOptions
) -> Iterator[str]:
    """The working engines of a processor in each lower precision that is allowed, unless an option
    gives it to the engine already."""
    for name in usable:
        own = options.get(name, {}).get("precision", FLOAT32)
        for lower in driven.by[name].precisions:
            if lower not in (FLOAT32, own) and lower in allowed(precision):
                yield EngineInfo(name, precision=lower).label


def _further(engines: Engines, rules: Rules) -> list[str]:
    """Engines that are not the first one of a processor."""
    further = [engine for usable in engines.values() for engine in usable[1:]]
    return list(dict.fromkeys(further)) if rules.further_engines else []


def _with(engine: str | None, names: Configuration, engines: Engines) -> Configuration:
    """The same devices, with ``engine`` for those that are named without one, or with the same one
    without a precision, and for which it is a further engine; each device once."""

    def named(name: str) -> str:
        request = parse(name)
        further = engines.get("cpu" if request.kind == "cpu" else request.device, ())[1:]
        own = Place("", engine or "").engine_name == request.engine and not request.precision
        if engine in further and (own or not request.engine):
            return f"{request.device}/{engine}"
        return name

    return tuple(dict.fromkeys(named(name) for name in names))


CoreSet = tuple[tuple[int, ...], ...]
"""The cores of each device, ascending."""

MOST_DEVICES = 16
"""Largest number of devices: no network has more branches, and strips of so few rows consist mostly
of rows that are computed twice."""
_NUMBERS = (2, 4, 8, MOST_DEVICES)


def core_sets(
    kinds: Sequence[Sequence[int]], partitions: Sequence[Sequence[Sequence[int]]] = ()
) -> list[CoreSet]:
    """Sets of cores worth considering, each once. Their number grows with the logarithm of the
    number of cores.

    All cores as one device. Several devices: the kinds of cores; 2, 4, 8 and 16 clusters of equal
    size, of all cores and of each kind, if no core is left over (of two clusters, the first may
    have one core more); the cores that share a memory; single cores. One device of fewer cores,
    because threads inside of operators stop scaling: half of the cores, a quarter and so on down to
    two; the cores of one kind; the cores that share a memory with the first core.

    The cores of a cluster are near each other, and faster kinds come first.

    Args:
        kinds: cores by kind, the fastest first (`detect.clusters`).
        partitions: groups of cores that share a memory (`detect.partitions`).
    """
    near = [sorted(kind, key=lambda core: _position(core, partitions)) for kind in kinds]
    cores = [core for kind in near for core in kind]
    sets: list[Sequence[Sequence[int]]] = [[cores], near]
    sets += [near[:number] for number in range(2, len(near))]
    for number in _NUMBERS:
        sets.append(_cut(cores, number))
        sets.append([part for kind in near for part in _cut(kind, number) or [kind]])
    sets += partitions
    sets.append([[core] for core in cores])
    fewer = len(cores)
    while (fewer := (fewer + 1) // 2) > 1:
        sets.append([cores[:fewer]])
    parts = [*near, *(group for groups in partitions for group in groups if cores[0] in group)]
    sets += [[part] for part in parts if len(part) > 1]
    found: dict[frozenset[tuple[int, ...]], CoreSet] = {}
    for devices in sets:
        each = tuple(tuple(sorted(device)) for device in devices)
        if 0 < len(each) <= MOST_DEVICES:
            found.setdefault(frozenset(each), each)
    return list(found.values())


def _position(core: int, partitions: Sequence[Sequence[Sequence[int]]]) -> tuple[int, ...]:
    """Sorts cores so that those which share a memory are neighbours."""
    groups = (
        next((number for number, group in enumerate(groups) if core in group), 0)
        for groups in partitions
    )
    return (*groups, core)


def _cut(cores: Sequence[int], number: int) -> list[Sequence[int]]:
    """``cores`` in equal parts; none if cores are left over. The first of two parts may have one
    core more."""
    if len(cores) < number or (len(cores) % number and number > 2):
        return []
    size = -(-len(cores) // number)
    return [cores[start : start + size] for start in range(0, len(cores), size)]
