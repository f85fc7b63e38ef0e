"""Descriptions of processors and of what connects them. No handles, nothing is measured here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

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
    """Where tensors lie. Places with the same memory hand tensors on without a copy."""

    host: str
    name: str
    """`MAIN`, or a name for what one engine alone can read."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine as it drives one device."""

    name: str
    """As the user writes it: "onnxruntime", "opencl"."""
    version: str = ""
    """All that durations and compiled programs depend on besides the processor: the engine's
    version, its build, its driver."""
    memory: str = MAIN
    """The memory of the host that its tensors lie in."""
    memory_bytes: int | None = None
    precision: str = "fp32"
    """How it computes: "fp32", "fp16" or "bf16"."""


@dataclass(frozen=True, slots=True)
class Power:
    """What a device draws, in watts."""

    busy_w: float
    """While it computes or copies."""
    idle_w: float
    """While it does neither."""

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.busy_w < math.inf:
            raise DeviceError(f"a device that draws {self.idle_w:g} W idle and {self.busy_w:g} W "
                              f"busy: idle is at least 0 W, and busy at least idle")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Device:
    """A processor, or a set of cores, with the engines that may compute on it."""

    name: str
    """As the user writes it: "cpu:0-3", "gpu:0"."""
    kind: str
    """What stands before the colon: "cpu", "gpu", "null", ..."""
    engines: tuple[EngineInfo, ...] = (EngineInfo("null"),)
    """At least one. Planners that choose no engine take the first."""
    cores: tuple[int, ...] = ()
    """Cores of the host that it occupies; none for a processor of its own."""
    host: str = "localhost"
    """The machine that it is in."""
    max_frequency_hz: float | None = None
    processor: str = ""
    """The processor's own name."""
    features: str = ""
    """A digest of the processor's instruction sets: engines lay out weights by them."""
    identity: str = ""
    """What engines tell it by from others of its kind, such as a GPU's UUID."""
    power: Power | None = None
    """None: not known."""

    def engine(self, name: str) -> EngineInfo:
        """What is known of one of its engines.

        Raises:
            DeviceError: it has no such engine.
        """
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise DeviceError(f"device {self.name!r} has no engine {name!r} here, only "
                          f"{', '.join(e.name for e in self.engines)}; write "
                          f"{self.name}/{name}, or make a new plan")  # fmt: skip

    @property
    def request(self) -> str:
        """How a user asks for it with exactly these engines: "cpu:1/opencl"."""
        return f"{self.name}/{'+'.join(engine.name for engine in self.engines)}"

    @property
    def places(self) -> tuple[Place, ...]:
        """One for each engine."""
        return tuple(Place(self.name, engine.name) for engine in self.engines)

    def memory(self, engine: str) -> Memory:
        """Where the tensors of an engine lie."""
        return Memory(self.host, self.engine(engine).memory)

    def key(self, engine: str) -> str:
        """Equal for two places on which a task takes equally long: keys the profile store."""
        info = self.engine(engine)
        hertz = "" if self.max_frequency_hz is None else f" {self.max_frequency_hz / 1e9:.2f} GHz"
        stored = "" if info.precision == "fp32" else f", {info.precision}"
        count = max(1, len(self.cores))
        features = f" ({self.features})" if self.features else ""
        processor = f"{self.processor}{features}{hertz}"
        return f"{self.kind} x{count} {processor}, {info.name} {info.version}{stored}"


@dataclass(frozen=True, slots=True)
class Link:
    """How data gets from one device to another, or from one engine to another, in one direction."""

    source: str
    """Name of a device."""
    target: str
    sync_latency_s: float = 0.0
    """From the end of a segment to the start of one that waits for it; nobody is busy."""
    bandwidth_bytes_per_s: float = float("inf")
    """Infinite where the tensors lie in one memory."""
    busy: Busy = "target"
    source_engine: str = ""
    """Empty: the same for all engines of the source that have no link of their own."""
    target_engine: str = ""
    media: tuple[str, ...] = ()
    """What else cannot carry anything meanwhile: the ports of both ends, one Wi-Fi. Links with a
    medium in common take turns. Only of links that keep no processor busy; empty: the link is a
    medium of its own."""

    def copy_s(self, size_bytes: int) -> float:
        """Seconds that moving ``size_bytes`` keeps the link and its busy processor occupied."""
        return size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class System:
    """The devices that a plan may use, and a link for each ordered pair of them.

    Where two engines have a link of their own, that one counts; else that of one engine, the
    source's first, with any of the other device; else the link of their devices; and where there is
    none, data moves at no cost.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names:
            raise DeviceError("no device is given; name at least one, for example cpu:0")
        _refuse_twice(self.devices)
        _refuse_shared_cores(self.devices)
        for link in self.links:
            for end in (link.source, link.target):
                if end not in names:
                    raise DeviceError(f"the link {link.source} -> {link.target} ends at {end!r}, "
                                      f"which is none of {', '.join(names)}")  # fmt: skip

    @cached_property
    def device(self) -> Mapping[str, Device]:
        """Device by name."""
        return {d.name: d for d in self.devices}

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """By device, its place for planners that choose no engine: the one with its first."""
        return tuple(device.places[0] for device in self.devices)

    @cached_property
    def _link(self) -> Mapping[tuple[str, str, str, str], Link]:
        return {(x.source, x.source_engine, x.target, x.target_engine): x for x in self.links}

    def link(self, source: Place, target: Place) -> Link:
        """The link between two places; one without cost where none is described."""
        for source_engine in (source.engine, ""):
            for target_engine in (target.engine, ""):
                ends = source.device, source_engine, target.device, target_engine
                if (found := self._link.get(ends)) is not None:
                    return found
        return Link(source.device, target.device)

    def memory(self, place: Place) -> Memory:
        """Where the tensors of a place lie."""
        return self.device[place.device].memory(place.engine)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the devices, in order."""
        return tuple(d.name for d in self.devices)

    @property
    def fingerprint(self) -> str:
        """A digest of the devices: what a cached plan and profile depend on."""
        return digest(
            *((d.name, d.key(e.name), d.memory(e.name)) for d in self.devices for e in d.engines)
        )

    def to_json(self) -> dict[str, Any]:
        """As plain lists and dictionaries; `from_json` reads it back."""
        return {
            "devices": [asdict(d) for d in self.devices],
            "links": [_finite(asdict(link)) for link in self.links],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        devices = tuple(_device(row) for row in data["devices"])
        return cls(devices, tuple(_link(row) for row in data["links"]))


def _device(row: Mapping[str, Any]) -> Device:
    engines = tuple(EngineInfo(**engine) for engine in row["engines"])
    power = Power(**row["power"]) if row.get("power") else None
    return Device(**{**row, "cores": tuple(row["cores"]), "engines": engines, "power": power})


def _link(row: Mapping[str, Any]) -> Link:
    bandwidth = row["bandwidth_bytes_per_s"] or float("inf")
    return Link(**{**row, "bandwidth_bytes_per_s": bandwidth, "media": tuple(row.get("media", ()))})


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
            raise DeviceError(f"device {device.name!r} is named twice; name each one "
                              f"once{both if len(engines) > 1 else ''}")  # fmt: skip


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


def _cores_apart(devices: Sequence[Device]) -> str:
    """What to name instead: each core belongs to the smallest device that has it."""
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
