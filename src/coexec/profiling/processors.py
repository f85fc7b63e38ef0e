"""Processor time of the processors that this process may use: used by programs, and taken by the
host of a virtual machine."""

import math
import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import NamedTuple, TypeVar

from coexec.engines.detect import allowed_threads
from coexec.rules import STOLEN

_T = TypeVar("_T")

_LOOK_S = 0.5
"""Seconds of `others_now`: on two cores, an error of a tick is a hundredth of the time."""
_TICK_S = 0.01
"""Unit of /proc/stat: Linux counts in hundredths of a second, with any timer."""


class ProcessorTime(NamedTuple):
    """Seconds used so far, summed over the hardware threads that this process may use."""

    busy_s: float = 0.0
    stolen_s: float = 0.0
    """In a virtual machine: there was work to do, but the host ran something else."""

    def since(self, before: "ProcessorTime") -> "ProcessorTime":
        return ProcessorTime(self.busy_s - before.busy_s, self.stolen_s - before.stolen_s)

    def plus(self, other: "ProcessorTime") -> "ProcessorTime":
        return ProcessorTime(self.busy_s + other.busy_s, self.stolen_s + other.stolen_s)

    @property
    def stolen(self) -> float:
        """Share taken by the host of the time in which there was work to do."""
        work_s = self.busy_s + self.stolen_s
        return self.stolen_s / work_s if work_s > 0 else 0.0

    @property
    def doubtful(self) -> bool:
        """Whether a measurement in this time is unreliable because of the host."""
        return self.stolen > STOLEN


def processor_time(root: Path = Path("/")) -> ProcessorTime:
    """Processor time so far, on Linux from /proc/stat, see proc_stat(5); elsewhere all zeros.

    What runs on processors that this process may not use disturbs no measurement.

    Args:
        root: the folder that has proc.
    """
    stat = root / "proc/stat"
    if not stat.is_file():
        return ProcessorTime()
    rows = dict(line.partition(" ")[::2] for line in stat.read_text().splitlines())
    threads = [row for thread in allowed_threads() if (row := rows.get(f"cpu{thread}"))]
    of_all = [rows.get("cpu", "")]  # where a container hides the rows of processors
    return reduce(ProcessorTime.plus, map(_processor_time, threads or of_all))


def _processor_time(row: str) -> ProcessorTime:
    user, nice, system, _, _, irq, soft, stolen = (int(t) * _TICK_S for t in row.split()[:8])
    return ProcessorTime(user + nice + system + irq + soft, stolen)


class Load(NamedTuple):
    """Processor time used by other programs in a period.

    Linux counts in ticks, so a short period may be wrong by a few ticks; a sum of many periods is
    precise.
    """

    others_s: float = 0.0
    all_s: float = 0.0
    """Length of the period times the number of hardware threads that this process may use."""
    processors: ProcessorTime = ProcessorTime()
    """Processor time of all programs in the period."""

    def plus(self, other: "Load") -> "Load":
        return Load(
            self.others_s + other.others_s,
            self.all_s + other.all_s,
            self.processors.plus(other.processors),
        )

    @property
    def share(self) -> float:
        """Share of all processor time that other programs used; 0 where it cannot be measured."""
        return max(0.0, self.others_s / self.all_s) if self.all_s > 0 else 0.0

    @property
    def least_share(self) -> float:
        """Lower bound of `share`, which is also valid for a short period.

        A whole tick is charged to the program that runs at that moment, so a sum of n ticks may be
        wrong by the square root of n.
        """
        error_s = 2 * math.sqrt(self.all_s * _TICK_S)
        return max(0.0, (self.others_s - error_s) / self.all_s) if self.all_s > 0 else 0.0


def with_load(
    run: Callable[[], _T],
    now_s: Callable[[], float] = time.perf_counter,
    used_s: Callable[[], float] = time.process_time,
    processors: Callable[[], ProcessorTime] = processor_time,
) -> tuple[_T, Load]:
    """The result of ``run``, and the load by other programs during the run.

    ``used_s``: a clock of the CPU time that ``run`` uses.
    """
    load_so_far = load_from_now(now_s, used_s, processors)
    return run(), load_so_far()


def load_from_now(
    now_s: Callable[[], float] = time.perf_counter,
    used_s: Callable[[], float] = time.process_time,
    processors: Callable[[], ProcessorTime] = processor_time,
) -> Callable[[], Load]:
    """A function that returns the load by other programs since this call.

    ``used_s``: a clock of the CPU time that this program uses.
    """
    start_s, own_s, before = now_s(), used_s(), processors()

    def load_so_far() -> Load:
        meanwhile = processors().since(before)
        others_s = meanwhile.busy_s - (used_s() - own_s)
        return Load(others_s, (now_s() - start_s) * len(allowed_threads()), meanwhile)

    return load_so_far


def others_now(
    sleep: Callable[[float], None] = time.sleep,
    processors: Callable[[], ProcessorTime] = processor_time,
) -> float:
    """Share of the processor time that other programs use, observed for half a second; 0 where it
    cannot be measured."""
    load_so_far = load_from_now(processors=processors)
    sleep(_LOOK_S)
    return load_so_far().share
