"""Energy of an inference on this machine, if its energy counters can be read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from coexec.errors import DeviceError
from coexec.profiling.energy import CLASSES, EnergyMeter


class MeasuredEnergy(NamedTuple):
    """Joules of an inference, or why they are unknown."""

    energy_j: float | None = None
    energy_unknown: str | None = None


def measured_energy(run: Callable[[], Any], root: Path = CLASSES) -> MeasuredEnergy:
    """Joules of one ``run``, measured in a loop of about half a second.

    The energy of all processors and their memory in that time is counted. If the counters cannot be
    read, nothing runs, and the reason is returned.
    """
    try:
        return MeasuredEnergy(EnergyMeter.of_machine(root).joules_each(run))
    except DeviceError as error:
        return MeasuredEnergy(energy_unknown=str(error))
