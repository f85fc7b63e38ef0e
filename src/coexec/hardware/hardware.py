"""Descriptions of processors and of the links between them. No handles; nothing is measured
here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from coexec.codec import decode, encode
from coexec.errors import DeviceError
from coexec.keys import digest
from coexec.units import format_numbers

__all__ = ["MAIN", "Busy", "Device", "EngineInfo", "Link", "Memory", "Place", "Power", "System"]

Busy = Literal["source", "target", "none"]
"""Which processor cannot compute while data moves over a link."""

MAIN = "main"
"""The memory of a host in which tensors are arrays that every program of the host can read."""


class Place(NamedTuple):
    """A device with one of its engines: where a piece is computed."""

    device: str
    engine: str

    def __str__(self) -> str:
        return f"{self.device}/{self.engine}"


class Memory(NamedTuple):
    """The memory that holds tensors. Places with the same memory hand over tensors without a
    copy."""

    host: str
    name: str
    """`MAIN`, or the name of a memory that only one engine can read."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine with its properties on one device."""

    name: str
    """As the user writes it: "onnxruntime", "opencl"."""
    version: str = ""
    """Everything besides the processor on which durations and compiled programs depend: the
    engine's version, its build, its driver."""
    memory: str = MAIN
    """The memory of the host that holds its tensors."""
    memory_bytes: int | None = None
    precision: str = "fp32"
    """Precision of its computation: "fp32", "fp16" or "bf16"."""
    pool: str = ""
    """Title of the threads with which it computes, if they can compute on one set of cores at a
    time in a process; "" if there is no such limit."""


@dataclass(frozen=True, slots=True)
class Power:
    """Power that a device draws, in watts."""

    busy_w: float
    """While it computes or copies."""
    idle_w: float
    """While it does neither."""

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.busy_w < math.inf:
            raise DeviceError(
                f"a device that draws {self.idle_w:g} W idle and {self.busy_w:g} W "
                f"busy: idle is at least 0 W, and busy at least idle"
            )


@dataclass(frozen=True, slots=True)
class Device:
    """A processor, or a set of cores, with the engines that may compute on it."""

    name: str
    """As the user writes it: "cpu:0-3", "gpu:0"."""
    kind: str
    """The part of the name before the colon: "cpu", "gpu", "null", ..."""
    engines: tuple[EngineInfo, ...] = (EngineInfo("null"),)
    """At least one. Planners that choose no engine take the first."""
    cores: tuple[int, ...] = ()
    """Cores of the host that it occupies; none for a processor of its own."""
    host: str = "localhost"
    """The machine that contains it."""
    max_frequency_hz: float | None = None
    processor: str = ""
    """The processor's own name."""
    features: str = ""
    """A digest of the processor's instruction sets: engines choose layouts of weights by them."""
    identity: str = ""
    """Text by which engines distinguish it from others of its kind, such as a GPU's UUID."""
    power: Power | None = None
    """None: not known."""

    def engine(self, name: str) -> EngineInfo:
        """The description of one of its engines.

        Raises:
            DeviceError: the device has no such engine.
        """
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise DeviceError(
            f"device {self.name!r} has no engine {name!r} here, only "
            f"{', '.join(e.name for e in self.engines)}; write "
            f"{self.name}/{name}, or make a new plan"
        )

    @property
    def request(self) -> str:
        """Text by which a user requests the device with exactly these engines: "cpu:1/opencl"."""
        return f"{self.name}/{'+'.join(engine.name for engine in self.engines)}"

    @property
    def places(self) -> tuple[Place, ...]:
        """One place for each engine."""
        return tuple(Place(self.name, engine.name) for engine in self.engines)

    def memory(self, engine: str) -> Memory:
        """The memory that holds the tensors of an engine."""
        return Memory(self.host, self.engine(engine).memory)

    def key(self, engine: str) -> str:
        """Key of the profile store: equal for two places on which a task takes equally long."""
        info = self.engine(engine)
        hertz = "" if self.max_frequency_hz is None else f" {self.max_frequency_hz / 1e9:.2f} GHz"
        stored = "" if info.precision == "fp32" else f", {info.precision}"
        count = max(1, len(self.cores))
        features = f" ({self.features})" if self.features else ""
        processor = f"{self.processor}{features}{hertz}"
        return f"{self.kind} x{count} {processor}, {info.name} {info.version}{stored}"


@dataclass(frozen=True, slots=True)
class Link:
    """A connection from one device or engine to another, in one direction."""

    source: str
    """Name of a device."""
    target: str
    sync_latency_s: float = 0.0
    """Seconds from the end of a segment to the start of one that depends on it; no processor is
    busy."""
    bandwidth_bytes_per_s: float = float("inf")
    """Infinite where the tensors of both ends are in one memory."""
    busy: Busy = "target"
    source_engine: str = ""
    """Empty: the same for all engines of the source that have no link of their own."""
    target_engine: str = ""
    media: tuple[str, ...] = ()
    """Resources that can carry no other data meanwhile: the ports of both ends, one Wi-Fi. Links
    with a medium in common take turns. Only for links that keep no processor busy; empty: the link
    is a medium of its own."""

    def copy_s(self, size_bytes: int) -> float:
        """Seconds for which moving ``size_bytes`` occupies the link and its busy processor."""
        return size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class System:
    """The devices that a plan may use, and a link for each ordered pair of them.

    The most specific link counts: first the link of the two engines, then a link of one engine with
    any engine of the other device (the source's engine first), then the link of the two devices.
    Without a link, data move at no cost.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names:
            raise DeviceError("no device is given; name at least one, for example cpu:0")
        _refuse_twice(self.devices)
        _refuse_shared_cores(self.devices)
        _refuse_shared_pool(self.devices)
        for link in self.links:
            for end in (link.source, link.target):
                if end not in names:
                    raise DeviceError(
                        f"the link {link.source} -> {link.target} ends at {end!r}, "
                        f"which is none of {', '.join(names)}"
                    )

    @cached_property
    def device(self) -> Mapping[str, Device]:
        """Device by name."""
        return {d.name: d for d in self.devices}

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The place of each device for planners that choose no engine: the one with its first
        engine."""
        return tuple(device.places[0] for device in self.devices)

    @cached_property
    def _link(self) -> Mapping[tuple[str, str, str, str], Link]:
        return {(x.source, x.source_engine, x.target, x.target_engine): x for x in self.links}

    def link(self, source: Place, target: Place) -> Link:
        """The link between two places; a link without cost if none is described."""
        for source_engine in (source.engine, ""):
            for target_engine in (target.engine, ""):
                ends = source.device, source_engine, target.device, target_engine
                if (link := self._link.get(ends)) is not None:
                    return link
        return Link(source.device, target.device)

    def memory(self, place: Place) -> Memory:
        """The memory that holds the tensors of a place."""
        return self.device[place.device].memory(place.engine)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices, in order."""
        return tuple(d.name for d in self.devices)

    @property
    def fingerprint(self) -> str:
        """A digest of the devices, on which cached plans and profiles depend."""
        return digest(
            *((d.name, d.key(e.name), d.memory(e.name)) for d in self.devices for e in d.engines)
        )

    def to_json(self) -> dict[str, Any]:
        """The system as plain lists and dictionaries; inverse of `from_json`."""
        return {
            "devices": encode(self.devices),
            "links": [_finite(encode(link)) for link in self.links],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: ``data`` has another form.
        """
        name = "bandwidth_bytes_per_s"
        links = [{**link, name: link[name] or math.inf} for link in data["links"]]
        return decode(cls, {**data, "links": links})


def _finite(link: dict[str, Any]) -> dict[str, Any]:
    # JSON has no infinity; null stands for a link without a copy.
    shared = link["bandwidth_bytes_per_s"] == float("inf")
    return link | ({"bandwidth_bytes_per_s": None} if shared else {})


def _refuse_twice(devices: Iterable[Device]) -> None:
    first: dict[str, Device] = {}
    for device in devices:
        other = first.setdefault(device.name, device)
        if other is not device:
            engines = dict.fromkeys(engine.name for d in (other, device) for engine in d.engines)
            both = f"; {device.name}/{'+'.join(engines)} is one device with both engines"
            raise DeviceError(
                f"device {device.name!r} is named twice; name each one "
                f"once{both if len(engines) > 1 else ''}"
            )


def _refuse_shared_cores(devices: Sequence[Device]) -> None:
    owner: dict[tuple[str, int], str] = {}
    for device in devices:
        for core in device.cores:
            other = owner.setdefault((device.host, core), device.name)
            if other != device.name:
                raise DeviceError(
                    f"devices {other!r} and {device.name!r} share core {core}; two devices "
                    f"of one plan never share a core: {_cores_apart(devices)}"
                )


def _refuse_shared_pool(devices: Sequence[Device]) -> None:
    owner: dict[tuple[str, str], Device] = {}
    for device in devices:
        for engine in device.engines:
            if not engine.pool:
                continue
            other = owner.setdefault((device.host, engine.pool), device)
            if other is not device:
                joined = format_numbers(sorted({*other.cores, *device.cores}))
                raise DeviceError(
                    f"devices {other.name!r} and {device.name!r} cannot both use {engine.name} in "
                    f"one plan: the threads of {engine.pool} compute on one set of cores in a "
                    f"process; name one device, {device.kind}:{joined}/{engine.name}, or give one "
                    f"of the two another engine"
                )


def _cores_apart(devices: Sequence[Device]) -> str:
    """Advice for the user in which each core belongs to the smallest device that has it."""
    taken: set[tuple[str, int]] = set()
    apart: dict[str, str] = {}
    for device in sorted(devices, key=lambda d: len(d.cores)):
        own = [core for core in device.cores if (device.host, core) not in taken]
        taken |= {(device.host, core) for core in own}
        if device.cores and not own:
            return f"leave {device.name!r} out, the others have all of its cores"
        name = f"{device.kind}:{format_numbers(own)}" if own else device.name
        apart[device.name] = device.request.replace(device.name, name, 1)
    return f"name {','.join(apart[device.name] for device in devices)}"
