"""Energy counters of this machine: joules drawn by its processors and their memory.

Linux shows the counters of Intel's and AMD's processors (RAPL) as folders of /sys/class/powercap:
`intel-rapl:0` is a package and `intel-rapl:0:2` one of its zones, with `name`, `energy_uj` and
`max_energy_range_uj`, at which the counter starts again from 0
(https://docs.kernel.org/power/powercap/powercap.html). The packages and their memory are counted;
the counter of a package does not include the memory. Cores and graphics are not counted again,
because the package includes them, nor is `psys`, which includes everything. On AMD's servers with
an older kernel, the driver amd_energy has counters of sockets in /sys/class/hwmon.

Counters are updated once in a millisecond. They count the whole machine, with the energy of other
programs and of an idle machine.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coexec.errors import DeviceError

__all__ = ["CLASSES", "EnergyCounter", "EnergyMeter"]

CLASSES = Path("/sys/class")
_PACKAGE = re.compile(r"intel-rapl:\d+")
_PART = re.compile(r"intel-rapl:\d+:\d+")
_LEAST_S = 0.5
"""Seconds of a measurement: long enough that a tick of a millisecond is less than half a percent.
"""
_LEAST_RUNS = 3


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """A counter of microjoules, which only grows until it starts again from 0."""

    name: str
    path: Path
    range_uj: int = 0
    """The largest value, after which the counter starts again from 0; 0: it never does."""

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

    def since_uj(self, before_uj: int, now_uj: int) -> int:
        """Microjoules between two readings. The counter may have started again once.

        Raises:
            DeviceError: the value has become smaller although the counter never starts again.
        """
        if now_uj >= before_uj:
            return now_uj - before_uj
        if before_uj > self.range_uj:
            raise DeviceError(
                f"the energy counter {self.path} went back from {before_uj} to "
                f"{now_uj}, and its range is {self.range_uj}"
            )
        return now_uj + self.range_uj - before_uj


class EnergyMeter:
    """The counters of this machine that together count each joule once."""

    def __init__(self, counters: Sequence[EnergyCounter]) -> None:
        """
        Raises:
            DeviceError: there are no counters.
        """
        if not counters:
            raise DeviceError(
                "this machine shows no energy counters: there is neither a package "
                "in /sys/class/powercap nor amd_energy in /sys/class/hwmon, as in "
                "most virtual machines"
            )
        self.counters = tuple(counters)

    @classmethod
    def of_machine(cls, root: Path = CLASSES) -> "EnergyMeter":
        """The counters under ``root``, each of which has been read once.

        Raises:
            DeviceError: there are none, or one cannot be read; the message says why.
        """
        meter = cls([*_powercap(root / "powercap")] or [*_amd_energy(root / "hwmon")])
        meter.read_uj()
        return meter

    def read_uj(self) -> tuple[int, ...]:
        """Microjoules of each counter.

        Raises:
            DeviceError: a counter cannot be read.
        """
        return tuple(counter.read_uj() for counter in self.counters)

    def since_j(self, before_uj: Sequence[int]) -> float:
        """Joules since an earlier reading."""
        now_uj = self.read_uj()
        spent = zip(self.counters, before_uj, now_uj, strict=True)
        return 1e-6 * sum(counter.since_uj(before, now) for counter, before, now in spent)

    def joules_each(
        self, run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
    ) -> float:
        """Mean joules of one ``run``, over at least half a second and at least three runs.

        A single inference may be shorter than the counters' tick.
        """
        before_uj, start_s, runs = self.read_uj(), clock(), 0
        while runs < _LEAST_RUNS or clock() - start_s < _LEAST_S:
            run()
            runs += 1
        return self.since_j(before_uj) / runs


def _powercap(folder: Path) -> Iterator[EnergyCounter]:
    """Counters of packages, and of the memory that they do not include."""
    for zone in sorted(folder.glob("intel-rapl:*")):
        name = _text(zone / "name")
        package = _PACKAGE.fullmatch(zone.name) and name.startswith("package")
        if package or (_PART.fullmatch(zone.name) and name == "dram"):
            text = _text(zone / "max_energy_range_uj")
            yield EnergyCounter(name, zone / "energy_uj", int(text) if text.isdecimal() else 0)


def _amd_energy(folder: Path) -> Iterator[EnergyCounter]:
    """Counters of sockets, which the driver counts in 64 bits; counters of cores are left out."""
    for chip in sorted(folder.glob("hwmon*")):
        if _text(chip / "name") != "amd_energy":
            continue
        for label in sorted(chip.glob("energy*_label")):
            if (name := _text(label)).startswith("Esocket"):
                number = label.name.removesuffix("_label")
                yield EnergyCounter(name, chip / f"{number}_input")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
