"""The machine that an export was made on, and how another one differs from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from coexec.__about__ import __version__
from coexec.engines import detect
from coexec.system.hardware import Device, System

__all__ = ["ExportMachine"]


@dataclass(frozen=True)
class ExportMachine:
    """Processors with their engines, as far as plans and compiled parts depend on them."""

    system: System
    """The devices of a plan."""
    cores: tuple[int, ...]
    """By cluster of equal cores, the fastest first, how many this process may use."""
    processor: str
    coexec: str = __version__

    @classmethod
    def here(cls, system: System) -> Self:
        """This machine, with the devices of a plan."""
        cores = tuple(len(members) for members, _ in detect.clusters())
        return cls(system, cores, detect.processor_name())

    def to_json(self) -> dict[str, Any]:
        """As plain lists and dictionaries; `from_json` reads it back."""
        return {"processor": self.processor, "cores": list(self.cores),
                "devices": self.system.to_json()["devices"]}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any], coexec: str) -> Self:
        """Inverse of `to_json`, for what was written by a version of coexec.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is something else.
        """
        system = System.from_json({"devices": data["devices"], "links": []})
        cores = tuple(int(count) for count in data["cores"])
        return cls(system, cores, str(data["processor"]), coexec)

    def runs_on(self, other: Self) -> bool:
        """Whether what was compiled on this machine runs on the other one."""
        mine, its = self.system.fingerprint, other.system.fingerprint
        return mine == its and self.coexec == other.coexec

    def against(self, other: Self) -> list[str]:
        """The differences of the two machines, each with both values. Without any, programs that
        were compiled on one machine run on the other, and take as long."""
        found = [
            f"{what} {mine}, here {its}"
            for what, mine, its in (
                ("coexec", self.coexec, other.coexec),
                ("processor", self.processor, other.processor),
                ("cores", _counted(self.cores), _counted(other.cores)),
            )
            if mine != its
        ]
        for device in self.system.devices:
            its_device = other.system.device.get(device.name)
            found += ([f"device {device.name}, not here"] if its_device is None
                      else _differences(device, its_device, self.processor))  # fmt: skip
        return list(dict.fromkeys(found))


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
    by_name = {engine.name: engine for engine in its.engines}
    for engine in mine.engines:
        there = by_name.get(engine.name)
        if there is None:
            yield f"engine {engine.name}, not here"
        elif engine.version != there.version:
            yield f"{engine.name} {engine.version}, here {there.version}"
        elif (engine.precision, engine.memory) != (there.precision, there.memory):
            yield (f"{engine.name} in {engine.precision} and memory {engine.memory}, here "
                   f"{there.precision} and {there.memory}")  # fmt: skip


def _hertz(device: Device) -> str:
    hertz = device.max_frequency_hz
    return "unknown" if hertz is None else f"{hertz / 1e9:.2f} GHz"
