"""Energy of an inference on this machine: joules drawn by its processors and their memory.

Linux shows the counters of Intel's and AMD's processors (RAPL) as folders of /sys/class/powercap:
`intel-rapl:0` is a package and `intel-rapl:0:2` one of its zones, with `name`, `energy_uj` and
`max_energy_range_uj`, at which the counter starts again from 0
(https://docs.kernel.org/power/powercap/powercap.html). The packages and their memory are counted;
the counter of a package does not include the memory. Cores and graphics are not counted again,
because the package includes them, nor is `psys`, which includes everything.

Counters are updated once in a millisecond. They count the whole machine, with the energy of other
programs and of an idle machine.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coexec.errors import DeviceError

_POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")
_PART = re.compile(r"intel-rapl:\d+:\d+")
_LEAST_S = 0.5
"""Seconds of a measurement: long enough that a tick of a millisecond is less than half a percent.
"""
_LEAST_RUNS = 3


class MeasuredEnergy(NamedTuple):
    """Joules of an inference, or why they are unknown."""

    energy_j: float | None = None
    energy_unknown: str | None = None


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """A counter of microjoules."""

    path: Path
    range_uj: int
    """The largest value, after which the counter starts again from 0."""

    def read_uj(self) -> int:
        """Read the counter.

        Raises:
            DeviceError: it cannot be read, or its text is no number.
        """
        try:
            return int(self.path.read_text())
        except PermissionError:
            raise DeviceError(
                f"the energy counter {self.path} may be read by root only; allow it "
                f"with: sudo chmod a+r {self.path}"
            ) from None
        except (OSError, ValueError) as error:
            raise DeviceError(f"the energy counter {self.path} cannot be read: {error}") from None

    def since_uj(self, before_uj: int) -> int:
        """Microjoules since an earlier reading. The counter may have started again once."""
        now_uj = self.read_uj()
        return now_uj - before_uj + (self.range_uj if now_uj < before_uj else 0)


def energy_counters(root: Path = _POWERCAP) -> list[EnergyCounter]:
    """The counters of packages and of their memory, which together count each joule once.

    Raises:
        DeviceError: there are none.
    """
    found = [*_counters(root)]
    if not found:
        raise DeviceError(
            "this machine shows no energy counters: there is no package in /sys/class/powercap, as "
            "in most virtual machines"
        )
    return found


def _counters(root: Path) -> Iterator[EnergyCounter]:
    for zone in sorted(root.glob("intel-rapl:*")):
        name = (zone / "name").read_text().strip()
        package = _PACKAGE.fullmatch(zone.name) and name.startswith("package")
        if package or (_PART.fullmatch(zone.name) and name == "dram"):
            range_uj = int((zone / "max_energy_range_uj").read_text())
            yield EnergyCounter(zone / "energy_uj", range_uj)


def measured_energy(
    run: Callable[[], Any],
    root: Path = _POWERCAP,
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredEnergy:
    """Mean joules of one ``run``, over at least half a second and at least three runs: a single
    inference may be shorter than the counters' tick.

    If the counters cannot be read, nothing runs, and the reason is returned.
    """
    try:
        counters = energy_counters(root)
        before_uj = [counter.read_uj() for counter in counters]
        start_s, runs = clock(), 0
        while runs < _LEAST_RUNS or clock() - start_s < _LEAST_S:
            run()
            runs += 1
        spent = zip(counters, before_uj, strict=True)
        total_uj = sum(counter.since_uj(before) for counter, before in spent)
    except DeviceError as error:
        return MeasuredEnergy(energy_unknown=str(error))
    return MeasuredEnergy(1e-6 * total_uj / runs)
