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
from coexec.precision import FLOAT32, Precision
from coexec.units import format_numbers

Busy = Literal["source", "target", "none"]
"""Which processor cannot compute while data moves over a link."""

MAIN = "main"
"""The memory of a host in which tensors are arrays that every program of the host can read."""


class Place(NamedTuple):
    """The identity of a device in a system: a processor, and the engine that computes there."""

    device: str
    """Name of the processor: "cpu:0-3". Devices with the same one share it."""
    engine: str
    """`EngineInfo.label`: "openvino", "openvino:bf16"."""

    @property
    def engine_name(self) -> str:
        """Name of the engine, without its precision."""
        return self.engine.partition(":")[0]

    @property
    def precision(self) -> str:
        """Precision in which the engine computes."""
        return self.engine.partition(":")[2] or FLOAT32

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
    precision: Precision = FLOAT32
    """Precision of its computation: a name in `coexec.precision`."""
    pool: str = ""
    """Title of the threads with which it computes, if they can compute on one set of cores at a
    time in a process; "" if there is no such limit."""

    @property
    def label(self) -> str:
        """Its name, and its precision if that is not float32: "openvino:bf16"."""
        return self.name if self.precision == FLOAT32 else f"{self.name}:{self.precision}"


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
    """A processor, or a set of cores, with the engine that computes on it.

    Another engine on the same cores is another device with the same name. Such devices share the
    processor: they never compute at the same time.
    """

    name: str
    """The processor as the user writes it: "cpu:0-3", "gpu:0"."""
    kind: str
    """The part of the name before the colon: "cpu", "gpu", "null", ..."""
    engine: EngineInfo = EngineInfo("null")
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

    @property
    def place(self) -> Place:
        """Its identity. As text, "cpu:1/cpp", a user requests it."""
        return Place(self.name, self.engine.label)

    @property
    def memory(self) -> Memory:
        """The memory that holds its tensors."""
        return Memory(self.host, self.engine.memory)

    @property
    def key(self) -> str:
        """Key of the profile store: equal for two devices on which a task takes equally long."""
        info = self.engine
        hertz = "" if self.max_frequency_hz is None else f" {self.max_frequency_hz / 1e9:.2f} GHz"
        stored = "" if info.precision == FLOAT32 else f", {info.precision}"
        count = max(1, len(self.cores))
        features = f" ({self.features})" if self.features else ""
        processor = f"{self.processor}{features}{hertz}"
        return f"{self.kind} x{count} {processor}, {info.name} {info.version}{stored}"


@dataclass(frozen=True, slots=True)
class Link:
    """A connection from one device to another, in one direction."""

    source: Place
    target: Place
    sync_latency_s: float = 0.0
    """Seconds from the end of a segment to the start of one that depends on it; no processor is
    busy."""
    bandwidth_bytes_per_s: float = float("inf")
    """Infinite where the tensors of both ends are in one memory."""
    busy: Busy = "target"
    media: tuple[str, ...] = ()
    """Resources that can carry no other data meanwhile: the ports of both ends, one Wi-Fi. Links
    with a medium in common take turns. Only for links that keep no processor busy; empty: the link
    is a medium of its own."""

    def copy_s(self, size_bytes: int) -> float:
        """Seconds for which moving ``size_bytes`` occupies the link and its busy processor."""
        return size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class System:
    """The devices that a plan may use, and a link for each ordered pair of them. Without a link,
    data move at no cost."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices:
            raise DeviceError("no device is given; name at least one, for example cpu:0")
        _refuse_twice(self.devices)
        _refuse_shared_cores(self.devices)
        _refuse_shared_pool(self.devices)
        for link in self.links:
            for end in (link.source, link.target):
                if end not in self.at:
                    raise DeviceError(
                        f"the link {link.source} -> {link.target} ends at {end}, "
                        f"which is none of {', '.join(map(str, self.places))}"
                    )

    @cached_property
    def at(self) -> Mapping[Place, Device]:
        """Device by its identity."""
        return {d.place: d for d in self.devices}

    @cached_property
    def device(self) -> Mapping[str, Device]:
        """The first device of each name."""
        return {d.name: d for d in reversed(self.devices)}

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The identities of the devices, in order."""
        return tuple(d.place for d in self.devices)

    @cached_property
    def processors(self) -> tuple[int, ...]:
        """By device, the index of its processor in `names`: equal for devices that share it."""
        return tuple(self.names.index(d.name) for d in self.devices)

    @cached_property
    def _link(self) -> Mapping[tuple[Place, Place], Link]:
        return {(link.source, link.target): link for link in self.links}

    def link(self, source: Place, target: Place) -> Link:
        """The link between two devices; a link without cost if none is described."""
        return self._link.get((source, target)) or Link(source, target)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the processors, in order. Devices that share a processor have one name."""
        return tuple(dict.fromkeys(d.name for d in self.devices))

    @property
    def fingerprint(self) -> str:
        """A digest of the devices, on which cached plans and profiles depend."""
        return digest(*((d.name, d.key, d.memory) for d in self.devices))

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
    first: dict[Place, Device] = {}
    for device in devices:
        if first.setdefault(device.place, device) is not device:
            raise DeviceError(
                f"device {device.name!r} with the engine {device.engine.label} is named twice; "
                f"name each one once"
            )


def _refuse_shared_cores(devices: Sequence[Device]) -> None:
    owner: dict[tuple[str, int], str] = {}
    for device in devices:
        for core in device.cores:
            other = owner.setdefault((device.host, core), device.name)
            if other != device.name:
                raise DeviceError(
                    f"devices {other!r} and {device.name!r} share core {core}; two devices "
                    f"of one plan share all of their cores or none: {_cores_apart(devices)}"
                )


def _refuse_shared_pool(devices: Sequence[Device]) -> None:
    owner: dict[tuple[str, str], Device] = {}
    for device in devices:
        engine = device.engine
        other = owner.setdefault((device.host, engine.pool), device)
        if engine.pool and other.name != device.name:
            joined = format_numbers(sorted({*other.cores, *device.cores}))
            raise DeviceError(
                f"devices {other.name!r} and {device.name!r} cannot both use {engine.name} in "
                f"one plan: the threads of {engine.pool} compute on one set of cores in a "
                f"process; name one device, {device.kind}:{joined}/{engine.name}, or give one "
                f"of the two another engine"
            )


def _cores_apart(devices: Sequence[Device]) -> str:
    """Advice for the user in which each core belongs to the smallest processor that has it."""
    taken: set[tuple[str, int]] = set()
    apart: dict[str, str] = {}
    by_name = {device.name: device for device in devices}
    for device in sorted(by_name.values(), key=lambda d: len(d.cores)):
        own = [core for core in device.cores if (device.host, core) not in taken]
        taken |= {(device.host, core) for core in own}
        if device.cores and not own:
            return f"leave {device.name!r} out, the others have all of its cores"
        apart[device.name] = f"{device.kind}:{format_numbers(own)}" if own else device.name
    return f"name {','.join(f'{apart[d.name]}/{d.engine.label}' for d in devices)}"
