"""A device with the engines that are open on it."""

from collections.abc import Callable, Iterable, Mapping

from coexec.engines.base import OpenEngine
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device, Place

__all__ = ["OpenDevice", "engine_at"]


class OpenDevice:
    """A processor ready to compute. Each of its engines is opened when it is first needed.

    The engines of a device take turns: one thread runs the programs of all of them.
    """

    def __init__(self, spec: Device, opener: Callable[[str], OpenEngine]) -> None:
        """``opener``: opens the engine of the device that has this name."""
        self.spec = spec
        self._opener = opener
        self._open: dict[str, OpenEngine] = {}

    @classmethod
    def of(cls, *engines: OpenEngine) -> "OpenDevice":
        """A device from engines that are already open."""
        by_name = {engine.info.name: engine for engine in engines}
        device = cls(engines[0].device, by_name.__getitem__)
        device._open |= by_name
        return device

    @property
    def first(self) -> OpenEngine:
        """The engine for plans that choose none."""
        return self.engine(self.spec.engines[0].name)

    def engine(self, name: str) -> OpenEngine:
        """One of its engines.

        Raises:
            DeviceError: it has no such engine, or the engine cannot be opened.
        """
        if name not in self._open:
            self.spec.engine(name)
            self._open[name] = self._opener(name)
        return self._open[name]

    def timed(self) -> "OpenDevice":
        """The device with engines that record more details and may be slower: see
        `OpenEngine.timed`."""
        return OpenDevice(self.spec, lambda name: self.engine(name).timed())

    def close(self) -> None:
        for engine in self._open.values():
            engine.close()
        self._open.clear()


def engine_at(place: Place, devices: Mapping[str, OpenDevice] | Iterable[OpenDevice]) -> OpenEngine:
    """The engine of a place on one of ``devices``.

    Raises:
        DeviceError: the device is not open, or lacks the engine.
    """
    by_name = devices if isinstance(devices, Mapping) else {d.spec.name: d for d in devices}
    if place.device not in by_name:
        raise DeviceError(
            f"the plan uses {place.device!r}, which is not open; open devices: {', '.join(by_name)}"
        )
    return by_name[place.device].engine(place.engine)
