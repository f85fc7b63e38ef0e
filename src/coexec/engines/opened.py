"""A device that is opened when it is first needed."""

from collections.abc import Callable, Iterable
from functools import cached_property

from coexec.engines.base import OpenEngine
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device, Place


class OpenDevice:
    """A device ready to compute. Its engine is opened when it is first needed."""

    def __init__(self, spec: Device, opener: Callable[[], OpenEngine]) -> None:
        """``opener``: opens the engine."""
        self.spec = spec
        self._opener = opener

    @classmethod
    def of(cls, engine: OpenEngine) -> "OpenDevice":
        """The device of an engine that is already open."""
        device = cls(engine.device, lambda: engine)
        assert device.engine is engine
        return device

    @cached_property
    def engine(self) -> OpenEngine:
        """Its engine.

        Raises:
            DeviceError: the engine cannot be opened.
        """
        try:
            return self._opener()
        except DeviceError as error:
            error.device = self.spec.name
            raise

    def timed(self) -> "OpenDevice":
        """The device with an engine that records more details and may be slower: see
        `OpenEngine.timed`."""
        return OpenDevice(self.spec, lambda: self.engine.timed())

    def close(self) -> None:
        if "engine" in self.__dict__:  # it is open
            self.engine.close()
            del self.engine


def engine_at(place: Place, devices: Iterable[OpenDevice]) -> OpenEngine:
    """The engine of one of ``devices``.

    Raises:
        DeviceError: the device is not open.
    """
    by_place = {device.spec.place: device for device in devices}
    if place not in by_place:
        raise DeviceError(
            f"the plan uses {place}, which is not open; open devices: "
            f"{', '.join(map(str, by_place))}; name it, or make a new plan"
        )
    return by_place[place].engine
