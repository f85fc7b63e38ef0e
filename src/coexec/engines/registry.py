"""The engines that are installed, and devices by the names that users write.

Engines are found through entry points, both coexec's own engines and those of other packages. An
engine that cannot be imported or breaks the contract of `coexec.engines.base` is left out; the
reason is reported when a user names it. Engines are tried in a separate process before they are
used (`coexec.engines.trial`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from coexec.engines import detect, trial
from coexec.engines.base import ONLY, Engine, OpenEngine, Processor
from coexec.engines.names import Request, cores_of, cpu_name, number_of, parse
from coexec.engines.opened import OpenDevice
from coexec.engines.options import EngineOptions, parsed
from coexec.errors import CoexecError, DeviceError, UsageError, first_line, nearest
from coexec.extras import BRINGS, install
from coexec.hardware.hardware import Device, EngineInfo, System

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = "coexec.engines"
_FAMILIES = "coexec_engine_families"
_REFERENCE = "reinstall its package, or leave this engine out"


@dataclass(frozen=True, slots=True)
class Driven:
    """A processor of this machine, as each of its engines describes it."""

    name: str
    """Name as users write it: "gpu:0"; "cpu" stands for any cores."""
    title: str
    by: Mapping[str, Processor]
    """Descriptions by engine, in the order of preference of plans."""

    @property
    def usable(self) -> tuple[str, ...]:
        """The engines that work."""
        return tuple(name for name, processor in self.by.items() if processor.unusable is None)


@cache
def _entries() -> "Mapping[str, EntryPoint]":
    from importlib.metadata import entry_points  # slow: it imports the e-mail parser

    entries = {entry.name: entry for entry in entry_points(group=_GROUP)}
    if not entries:  # coexec's own engines are missing, so the package itself is not installed
        raise DeviceError(
            "coexec has no engines, because it is not installed in this Python: "
            "engines are found by what pip keeps of packages; python "
            "-m pip install coexec, or -e and the source's folder"
        )
    return entries


@cache
def _of_families() -> "Mapping[str, tuple[Engine | CoexecError, EntryPoint]]":
    """The engines of families by name, with the entry points of their families. A family that
    cannot be imported is here by its own name, with the error; what is no `Engine` of its name is
    left out."""
    from importlib.metadata import entry_points

    found: dict[str, tuple[Engine | CoexecError, EntryPoint]] = {}
    for entry in entry_points(group=_FAMILIES):
        try:
            with _contract(entry.name, "be imported"):
                found |= {
                    name: (engine, entry)
                    for name, engine in entry.load()().items()
                    if isinstance(engine, Engine) and engine.name == name
                }
        except CoexecError as error:
            found[entry.name] = error, entry
    return found


def engine_names() -> tuple[str, ...]:
    """Names of all installed engines, whether they work or not."""
    return tuple(sorted({*_entries(), *_of_families()}))


@cache
def load_engine(name: str) -> Engine:
    """The engine of an entry point.

    Raises:
        DeviceError: the engine is not installed, cannot be imported, or is no `Engine`.
    """
    entry = _entries().get(name)
    if entry is None and (member := _of_families().get(name)) is not None:
        if isinstance(member[0], CoexecError):
            raise DeviceError(str(member[0]))
        return member[0]
    if entry is None:
        raise DeviceError(
            f"there is no engine {name!r} here, only {', '.join(engine_names())}; "
            f"install the package that brings it"
        )
    with _contract(name, "be imported"):
        engine = entry.load()()
    if not isinstance(engine, Engine) or engine.name != name:
        raise DeviceError(
            f"engine {name!r} ({entry.value}) is no subclass of "
            f"coexec.engines.base.Engine with this name; {_REFERENCE}"
        )
    return engine


@contextmanager
def _contract(name: str, what: str) -> Iterator[None]:
    """Turn an error of an engine's code into a DeviceError that names the engine.

    Errors of coexec, such as the engine's own DeviceError, pass through.

    Args:
        what: completes "engine NAME cannot ...".
    """
    try:
        yield
    except CoexecError:
        raise
    except Exception as error:
        raise DeviceError(
            f"engine {name!r} cannot {what}: {type(error).__name__}: "
            f"{first_line(error)}; {_REFERENCE}"
        ) from error


@cache
def _working() -> tuple[Engine, ...]:
    """The engines that can be imported, in the order of preference of plans."""
    engines = []
    for name in engine_names():
        with suppress(DeviceError):  # it is reported when a user names this engine, and by `broken`
            engines.append(load_engine(name))
    for engine in engines:
        with suppress(Exception):  # such an engine fails again, with a message, when it is used
            engine.preload()
    return tuple(sorted(engines, key=lambda engine: (engine.rank, engine.name)))


def installed() -> tuple[tuple[str, str], ...]:
    """Names of the engines, each with its installed packages. Changes when an engine is added,
    removed or updated.

    No library is loaded. A driver that changes behind the same file is not noticed.
    """
    return tuple((engine.name, engine.installed) for engine in _working() if not engine.pretends)


def kinds() -> tuple[str, ...]:
    """The kinds of processors that at least one engine may drive."""
    return tuple(dict.fromkeys(kind for engine in _working() for kind in engine.kinds))


def processors(
    kind: str | None = None, fresh: bool = False, options: EngineOptions | None = None
) -> list[Driven]:
    """This machine's processors, or those of one kind, tried with all engines that drive them.

    The first trial of an engine or driver takes seconds.

    Args:
        kind: None: all kinds.
        fresh: drop the stored verdicts and try all engines again.
    """
    if fresh:
        trial.forget()
    return grouped(
        {
            engine.name: [
                tried(engine, processor, options) for processor in listed(engine, kind, options)
            ]
            for engine in _working()
        }
    )


def untried(kind: str | None, options: EngineOptions | None = None) -> list[Driven]:
    """This machine's processors, or those of one kind, as engines list them, without a trial."""
    return grouped({engine.name: listed(engine, kind, options) for engine in _working()})


def listed(
    engine: Engine, kind: str | None, options: EngineOptions | None = None
) -> list[Processor]:
    """The processors as one engine lists them, without a trial; an unusable CPU if the engine fails
    to list its CPUs."""
    found: list[Processor] = []
    engine = engine.configured(parsed(engine, options))
    of_kinds = () if kind is None and engine.pretends else engine.kinds
    for each in (each for each in of_kinds if kind in (None, each)):
        try:
            with _contract(engine.name, f"list its processors of kind {each}"):
                found += list(engine.processors(each))
        except DeviceError as error:
            if each == "cpu":
                found.append(Processor("cpu", detect.processor_name(), unusable=str(error)))
    return found


def grouped(by_engine: Mapping[str, Sequence[Processor]]) -> list[Driven]:
    """Processors that engines list, in the order of preference of plans, each once."""
    groups: dict[tuple[str, str], dict[str, Processor]] = {}
    for engine, found in by_engine.items():
        for processor in found:
            groups.setdefault((processor.kind, processor.identity), {})[engine] = processor
    for kind in [kind for kind, identity in groups if identity == ONLY]:
        known = [key for key in groups if key[0] == kind and key[1] != ONLY]
        if len(known) == 1:
            together = groups[known[0]] | groups.pop((kind, ONLY))
            groups[known[0]] = {name: together[name] for name in by_engine if name in together}
    counts: dict[str, int] = {}
    rows = []
    for (of_kind, _), by in groups.items():
        number = counts[of_kind] = counts.get(of_kind, -1) + 1
        name = of_kind if of_kind == "cpu" else f"{of_kind}:{number}"
        rows.append(Driven(name, next(iter(by.values())).title, by))
    return rows


def broken(options: EngineOptions | None = None) -> dict[str, str]:
    """The reasons by name, for engines that are installed but cannot be imported, or cannot list
    their processors."""
    reasons = {}
    for name in engine_names():
        try:
            engine = load_engine(name)
            check_listing(engine.configured(parsed(engine, options)))
        except DeviceError as error:
            reasons[name] = str(error)
    return reasons


def failing() -> dict[str, str]:
    """The reasons by name, for engines that are `broken` or have failed a trial on this machine."""
    reasons = broken()
    for engine in _working():
        for processor in (p for p in listed(engine, None) if p.unusable is None):
            if (reason := tried(engine, processor).unusable) is not None:
                reasons[engine.name] = reason
    return reasons


def check_listing(engine: Engine) -> None:
    """
    Raises:
        DeviceError: the engine cannot list its processors other than CPU cores.
    """
    for kind in () if engine.pretends else engine.kinds:
        if kind != "cpu":  # `listed` has the reason otherwise
            with _contract(engine.name, f"list its processors of kind {kind}"):
                engine.processors(kind)


def tried(engine: Engine, processor: Processor, options: EngineOptions | None = None) -> Processor:
    """A processor with the result of the engine's trial on it."""
    if not engine.needs_trial or processor.unusable is not None:
        return processor
    kind, title = processor.kind, processor.title
    device = Device(title, kind, processor=title, identity=processor.identity)
    return replace(processor, unusable=_failure(engine, device, options))


def _failure(engine: Engine, device: Device, options: EngineOptions | None) -> str | None:
    """The reason why an engine must not be used, and the remedy; None if it passed its trial.

    One trial holds for all cores. Other processors are distinguished by their identity, as their
    number depends on the engines that list them.
    """
    processor = device.identity or device.processor
    if device.kind == "cpu":
        device = _bare(parse(cpu_name(detect.usable_cores()[:1])))
        processor = device.name
    entry = _entries().get(engine.name) or _of_families()[engine.name][1]
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    version = f"{package}, {engine.configured(parsed(engine, options)).version}"
    own = dict((options or {}).get(engine.name, {}))
    facts = {"engine": engine.name, "device": processor, "version": version, "options": own}
    target = "coexec.engines.small_model:attempt"
    failure = trial.failure(target, engine.name, device, own, facts=facts)
    if not failure:
        return None
    return (
        f"engine {engine.name} is unusable on {device.name}: a small model {failure} "
        f"[{version}]; update or reinstall its package or driver, after which coexec devices "
        f"--fresh tries it again, or leave the engine out"
    )


def describe(name: str, options: EngineOptions | None = None) -> Device:
    """The device that ``name`` means on this machine, with its engine.

    A name without an engine means the first engine that drives the device.

    Raises:
        DeviceError: the kind is unknown, the name is malformed, this machine lacks the cores, or an
            engine is not installed, cannot drive the device, or failed its trial.
    """
    request = parse(name)
    if request.kind not in kinds():
        raise DeviceError(
            f"unknown device {name!r}: its kind {request.kind!r} is none of "
            f"{', '.join(kinds())}; coexec devices lists this machine's"
        )
    device = _bare(request, options)
    engine = load_engine(request.engine) if request.engine else _first_for(device)
    info = _described(engine, device, options, request.precision)
    if engine.configured(parsed(engine, options)).needs_trial:
        reason = _failure(engine, device, options)
        if reason is not None:
            raise DeviceError(reason)
    return replace(device, engine=info)


def open_engine(name: str, device: Device, own: Mapping[str, str]) -> OpenEngine:
    """An engine with options of its own on a processor, opened without a trial. The trial itself
    calls this.

    Raises:
        DeviceError: as `describe` and `open_device`.
    """
    options = {name: own}
    info = _described(load_engine(name), device, options)
    return open_device(replace(device, engine=info), options).engine


def _first_for(device: Device) -> Engine:
    """The engine of lowest rank that may drive the device.

    For devices other than a CPU, working engines come first.
    """
    able = [engine for engine in _working() if device.kind in engine.kinds]
    if device.kind != "cpu":
        driven = next(d for d in processors(device.kind) if d.name == device.name)
        able = [engine for engine in able if engine.name in driven.by]
        able.sort(key=lambda engine: driven.by[engine.name].unusable is not None)
    return able[0]


def device_of(engine: str, number: int) -> str:
    """The name of a GPU or NPU by its number among those that an engine lists, "gpu:0/ort-cuda";
    without the engine, if it is the first one of the device.

    Raises:
        DeviceError: the engine does not exist, or lists no such device.
    """
    of = load_engine(engine)
    driven = [d for kind in of.kinds if kind != "cpu" for d in processors(kind) if engine in d.by]
    if number >= len(driven):
        check_listing(of)  # it has the reason
        raise DeviceError(f"engine {engine} lists {len(driven)} devices, and not number {number}")
    name, usable = driven[number].name, driven[number].usable
    return name if usable[:1] == (engine,) else f"{name}/{engine}"


def _described(
    engine: Engine, device: Device, options: EngineOptions | None, precision: str = ""
) -> EngineInfo:
    if device.kind not in engine.kinds:
        raise DeviceError(
            f"engine {engine.name!r} does not drive {device.name!r}, but "
            f"{', '.join(engine.kinds)}; {engine.advice}"
        )
    with _contract(engine.name, f"describe {device.name}"):
        info = engine.describe(device, parsed(engine, options, precision))
    if not isinstance(info, EngineInfo) or info.name != engine.name:
        raise DeviceError(
            f"engine {engine.name!r} describes {device.name!r} as {info!r}, which "
            f"is no EngineInfo of its name; {_REFERENCE}"
        )
    if precision not in ("", info.precision):
        raise DeviceError(
            f"engine {engine.name!r} computes in {info.precision} on {device.name}, and not in "
            f"{precision}; coexec devices lists the precisions of each engine"
        )
    return info


def _bare(request: Request, options: EngineOptions | None = None) -> Device:
    """The device of a request, without its engine."""
    return _cores(request) if request.kind == "cpu" else _numbered(request, options)


def _cores(request: Request) -> Device:
    cores = cores_of(request)
    speeds = {core: hertz for members, hertz in detect.clusters(cores=cores) for core in members}
    frequencies = [hertz for hertz in speeds.values() if hertz]
    capacity = detect.capacity(cores)  # cores may differ although their frequencies are equal
    return Device(
        request.device,
        request.kind,
        cores=cores,
        max_frequency_hz=min(frequencies) if frequencies else None,
        processor=_processor() + (f", capacity {capacity:.3f}" if capacity < 1 else ""),
        features=detect.processor_features(),
    )


@cache
def _processor() -> str:
    return detect.processor_name()


def _numbered(request: Request, options: EngineOptions | None) -> Device:
    number_of(request)
    candidates = untried(request.kind, options)
    for driven in candidates:
        if driven.name == request.device:
            known = (p.identity for p in driven.by.values() if p.identity != ONLY)
            identity = next(known, ONLY)
            title, kind = driven.title, request.kind
            return Device(driven.name, kind, processor=title, identity=identity)
    titles = ", ".join(f"{d.name} ({d.title})" for d in candidates) or "none"
    missing = "" if candidates else "".join(f". {reason}" for reason in _missing(request.kind))
    raise DeviceError(
        f"device {request.device!r} does not exist; this machine's devices of that kind: "
        f"{titles}{missing}. CPU cores are called cpu:0, cpu:0-3 or, with an engine, cpu:0/cpp; "
        f"coexec devices lists all, with what is missing"
    )


def _missing(kind: str) -> list[str]:
    """What may be missing, where no engine lists a processor of this kind: packages, and the
    reasons why engines that may drive it do not work on CPU cores either."""
    reasons = []
    if kind == "gpu" and find_spec("pyopencl") is None:
        reasons.append(f"{install('gpu')} brings {BRINGS['gpu']}")
    return reasons + [
        processor.unusable
        for engine in _working()
        if {kind, "cpu"} <= set(engine.kinds)
        for processor in listed(engine, "cpu")
        if processor.unusable is not None
    ]


def open_device(
    spec: Device, options: EngineOptions | None = None, folder: Path | None = None
) -> OpenDevice:
    """The device that ``spec`` describes; its engine is opened when it is first needed.

    Args:
        folder: the cache folder for compiled programs and measurements; None: nothing is kept.
    """

    def opener() -> OpenEngine:
        name, precision = spec.engine.name, spec.engine.precision
        engine = load_engine(name)
        with _contract(name, f"be opened on {spec.name}"):
            opened = engine.open(spec, spec.engine, parsed(engine, options, precision), folder)
        if not isinstance(opened, OpenEngine):
            raise DeviceError(
                f"engine {name!r} opens {spec.name!r} as a {type(opened).__name__}, "
                f"which is no OpenEngine; {_REFERENCE}"
            )
        return opened

    return OpenDevice(spec, opener)


def open_devices(
    names: Iterable[str], options: EngineOptions | None = None, folder: Path | None = None
) -> tuple[OpenDevice, ...]:
    """Devices that may be used together.

    Raises:
        DeviceError: a name is wrong, or two devices share some of their cores.
    """
    system = System(tuple(describe(name, options) for name in names))
    return tuple(open_device(spec, options, folder) for spec in system.devices)


def check_options(options: EngineOptions) -> None:
    """
    Raises:
        UsageError: an engine or option does not exist, or a value is not allowed.
        DeviceError: an engine is installed but cannot be imported.
    """
    for name in options:
        if name not in engine_names():
            raise UsageError(
                f"options are given for the engine {name!r}, which is none of "
                f"{', '.join(engine_names())}"
                f"{nearest(name, engine_names())}"
            )
        parsed(load_engine(name), options)


def options_of_export(names: Iterable[str], options: EngineOptions) -> EngineOptions:
    """Options of engines for an export that computes on the named devices: those of the user, and
    `Engine.export_options`."""
    engines = [load_engine(describe(name, options).engine.name) for name in names]
    own = {each.name: each.export_options for each in engines if each.export_options}
    return {**options, **{name: {**of, **options.get(name, {})} for name, of in own.items()}}


def is_pretended(spec: Device) -> bool:
    """Whether the device has an engine for tests, which uses no real processor."""
    return load_engine(spec.engine.name).pretends
