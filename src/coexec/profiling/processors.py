"""What this machine's processors do, and what the host of a virtual machine takes of them."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["BUSY", "STOLEN", "Load", "ProcessorTime", "processor_time", "with_load"]

_T = TypeVar("_T")

BUSY = 0.1
"""The share of the processors' time that other programs may use: a daemon or an editor takes a few
hundredths, and a program that computes at least the share of a core."""
STOLEN = 0.02
"""Share of the processors' time that a host took, from which on measurements are doubtful: below,
hardly anything has waited for it."""
_TICK_S = 0.01
"""Linux counts in /proc/stat in hundredths of a second, whatever the timer."""


class ProcessorTime(NamedTuple):
    """What this machine's processors did so far, added up over all of them, in seconds."""

    busy_s: float = 0.0
    stolen_s: float = 0.0
    """Of a virtual machine: there was work to do, and the host ran something else."""

    def since(self, before: "ProcessorTime") -> "ProcessorTime":
        return ProcessorTime(self.busy_s - before.busy_s, self.stolen_s - before.stolen_s)

    def plus(self, other: "ProcessorTime") -> "ProcessorTime":
        return ProcessorTime(self.busy_s + other.busy_s, self.stolen_s + other.stolen_s)

    @property
    def stolen(self) -> float:
        """The share that the host took of the time in which there was work to do."""
        wanted_s = self.busy_s + self.stolen_s
        return self.stolen_s / wanted_s if wanted_s > 0 else 0.0

    @property
    def doubtful(self) -> bool:
        """Whether what was measured meanwhile tells less of this machine than of its host."""
        return self.stolen > STOLEN


def processor_time() -> ProcessorTime:
    """On Linux, from /proc/stat; see proc_stat(5). Elsewhere nothing is known to be stolen."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return ProcessorTime()
    ticks = stat.read_text().split(maxsplit=9)[1:9]
    user, nice, system, _, _, irq, soft, stolen = (int(t) * _TICK_S for t in ticks)
    return ProcessorTime(user + nice + system + irq + soft, stolen)


class Load(NamedTuple):
    """What other programs used of the processors in some time.

    Linux counts in ticks, so that a short time may be off by some of them; a sum of many is not.
    """

    others_s: float = 0.0
    all_s: float = 0.0
    """Of all processors."""
    processors: ProcessorTime = ProcessorTime()
    """What they did meanwhile, for whomever."""

    def plus(self, other: "Load") -> "Load":
        return Load(self.others_s + other.others_s, self.all_s + other.all_s,
                    self.processors.plus(other.processors))  # fmt: skip

    @property
    def share(self) -> float:
        """0 where the system does not tell what its processors do."""
        return max(0.0, self.others_s / self.all_s) if self.all_s > 0 else 0.0

    @property
    def least_share(self) -> float:
        """What of `share` is certain after a short time, too.

        A tick counts as a whole for whoever runs when it comes: a sum of n is off by the root of n.
        """
        error_s = 2 * math.sqrt(self.all_s * _TICK_S)
        return max(0.0, (self.others_s - error_s) / self.all_s) if self.all_s > 0 else 0.0


def with_load(
    run: Callable[[], _T],
    now_s: Callable[[], float] = time.perf_counter,
    used_s: Callable[[], float] = time.process_time,
    processors: Callable[[], ProcessorTime] = processor_time,
) -> tuple[_T, Load]:
    """What ``run`` returns, and what other programs did meanwhile.

    ``used_s``: a clock of the CPU time that ``run`` uses.
    """
    start_s, own_s, before = now_s(), used_s(), processors()
    value = run()
    meanwhile = processors().since(before)
    others_s = meanwhile.busy_s - (used_s() - own_s)
    return value, Load(others_s, (now_s() - start_s) * (os.cpu_count() or 1), meanwhile)
