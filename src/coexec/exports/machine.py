"""The machine that an export was made on, and how another one differs from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from coexec.__about__ import __version__
from coexec.engines import detect
from coexec.hardware.hardware import Device, System

__all__ = ["ExportMachine"]


@dataclass(frozen=True)
class ExportMachine:
    """The facts about a machine on which plans and compiled parts depend."""

    system: System
    """The devices of a plan, with their engines."""
    cores: tuple[int, ...]
    """Number of usable cores in each cluster of equal cores, the fastest cluster first."""
    processor: str
    coexec: str = __version__

    @classmethod
    def here(cls, system: System) -> Self:
        """This machine, with the devices of a plan."""
        cores = tuple(len(members) for members, _ in detect.clusters())
        return cls(system, cores, detect.processor_name())

    def to_json(self) -> dict[str, Any]:
        """The machine as lists and dictionaries for JSON. `from_json` reads it."""
        return {
            "processor": self.processor,
            "cores": list(self.cores),
            "devices": self.system.to_json()["devices"],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], coexec: str) -> Self:
        """The machine that `to_json` of a version ``coexec`` has written.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: ``data`` has another form.
        """
        system = System.from_json({"devices": data["devices"], "links": []})
        cores = tuple(int(count) for count in data["cores"])
        return cls(system, cores, str(data["processor"]), coexec)

    def runs_on(self, other: Self) -> bool:
        """Whether parts that were compiled on this machine run on ``other``."""
        fingerprint, other_fingerprint = self.system.fingerprint, other.system.fingerprint
        return fingerprint == other_fingerprint and self.coexec == other.coexec

    def against(self, other: Self) -> list[str]:
        """The differences of the two machines, each with both values.

        If there are none, programs that were compiled on one machine run on the other, and take
        equally long."""
        differences = [
            f"{fact} {value}, here {other_value}"
            for fact, value, other_value in (
                ("coexec", self.coexec, other.coexec),
                ("processor", self.processor, other.processor),
                ("cores", _counted(self.cores), _counted(other.cores)),
            )
            if value != other_value
        ]
        for device in self.system.devices:
            other_device = other.system.at.get(device.place) or other.system.device.get(device.name)
            differences += (
                [f"device {device.name}, not here"]
                if other_device is None
                else _differences(device, other_device, self.processor)
            )
        return list(dict.fromkeys(differences))


def _counted(cores: Sequence[int]) -> str:
    return "+".join(map(str, cores)) or "0"


def _differences(mine: Device, its: Device, named: str) -> Iterator[str]:
    if mine.processor not in (its.processor, named):
        yield f"{mine.name} {mine.processor}, here {its.processor}"
    if mine.features != its.features:
        yield f"instruction sets {mine.features or 'unknown'}, here {its.features or 'unknown'}"
    if mine.max_frequency_hz != its.max_frequency_hz:
        yield f"{mine.name} at most {_hertz(mine)}, here {_hertz(its)}"
    if len(mine.cores) != len(its.cores):
        yield f"{mine.name} {len(mine.cores)} cores, here {len(its.cores)}"
    engine, other = mine.engine, its.engine
    if engine.name != other.name:
        yield f"engine {engine.name}, not here"
    elif engine.version != other.version:
        yield f"{engine.name} {engine.version}, here {other.version}"
    elif (engine.precision, engine.memory) != (other.precision, other.memory):
        yield (
            f"{engine.name} in {engine.precision} and memory {engine.memory}, here "
            f"{other.precision} and {other.memory}"
        )


def _hertz(device: Device) -> str:
    hertz = device.max_frequency_hz
    return "unknown" if hertz is None else f"{hertz / 1e9:.2f} GHz"
