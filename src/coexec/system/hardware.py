"""Descriptions of processors and of what connects them. No handles, nothing is measured here."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, Self

from coexec.errors import DeviceError

__all__ = ["Busy", "Device", "Link", "System"]

Busy = Literal["source", "target", "none"]
"""Which processor cannot compute while data moves over a link."""


@dataclass(frozen=True, slots=True)
class Device:
    """A processor, or a set of cores, with the memory that it computes in."""

    name: str
    """As the user writes it: "cpu:0-3", "gpu:0"."""
    kind: str
    """The row of the device registry that made it: "cpu", "null", ..."""
    cores: tuple[int, ...] = ()
    """Cores of the host that it occupies; none for a processor of its own."""
    memory: str = "host"
    """Devices that name the same memory hand tensors to each other without a copy."""
    memory_bytes: int | None = None
    max_frequency_hz: float | None = None
    processor: str = ""
    """The processor's own name."""
    engine: str = ""
    """What runs the kernels, with its version: "onnxruntime 1.31.1, ..."."""
    precision: str = "fp32"
    """How tensors are stored: "fp32" or "fp16"."""
    features: str = ""
    """A digest of the processor's instruction sets: engines lay out weights by them."""

    @property
    def key(self) -> str:
        """Equal for two devices on which a task takes equally long: keys the profile store."""
        hertz = "" if self.max_frequency_hz is None else f" {self.max_frequency_hz / 1e9:.2f} GHz"
        stored = "" if self.precision == "fp32" else f", {self.precision}"
        count = max(1, len(self.cores))
        features = f" ({self.features})" if self.features else ""
        processor = f"{self.processor}{features}{hertz}"
        return f"{self.kind} x{count} {processor}, {self.engine}{stored}"


@dataclass(frozen=True, slots=True)
class Link:
    """How data gets from one device to another, in one direction."""

    source: str
    target: str
    latency_s: float = 0.0
    """From the end of a segment to the start of one that waits for it; nobody is busy."""
    bandwidth_bytes_per_s: float = float("inf")
    """Infinite where the devices share a memory."""
    busy: Busy = "target"

    def copy_s(self, size_bytes: int) -> float:
        """Seconds that moving ``size_bytes`` keeps the link and its busy processor occupied."""
        return size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class System:
    """The devices that a plan may use, and a link for each ordered pair of them."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names:
            raise DeviceError("no device is given; name at least one, for example cpu:0")
        for device in self.devices:
            if names.count(device.name) > 1:
                raise DeviceError(f"device {device.name!r} is named twice; name each one once")
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
    def _link(self) -> Mapping[tuple[str, str], Link]:
        return {(link.source, link.target): link for link in self.links}

    def link(self, source: str, target: str) -> Link:
        """The link between two devices; one without cost where none is described."""
        found = self._link.get((source, target))
        return Link(source, target) if found is None else found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.devices)

    @property
    def fingerprint(self) -> str:
        """A digest of the devices: what a cached plan and profile depend on."""
        text = repr([(d.name, d.key, d.memory) for d in self.devices])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """As plain lists and dictionaries; `from_json` reads it back."""
        return {
            "devices": [asdict(d) for d in self.devices],
            "links": [_finite(asdict(link)) for link in self.links],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        devices = tuple(Device(**(d | {"cores": tuple(d["cores"])})) for d in data["devices"])
        links = tuple(
            Link(**(x | {"bandwidth_bytes_per_s": x["bandwidth_bytes_per_s"] or float("inf")}))
            for x in data["links"]
        )
        return cls(devices, links)


def _finite(link: dict[str, Any]) -> dict[str, Any]:
    # JSON has no infinity; null stands for a link without a copy.
    shared = link["bandwidth_bytes_per_s"] == float("inf")
    return link | ({"bandwidth_bytes_per_s": None} if shared else {})


def _refuse_shared_cores(devices: Iterable[Device]) -> None:
    owner: dict[int, str] = {}
    for device in devices:
        for core in device.cores:
            if core in owner:
                raise DeviceError(
                    f"devices {owner[core]!r} and {device.name!r} share core {core}; two devices "
                    f"of one plan never share a core: give each its own, for example cpu:0,cpu:1"
                )
            owner[core] = device.name
