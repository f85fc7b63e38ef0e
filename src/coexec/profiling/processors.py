"""What this machine's processors do, and what the host of a virtual machine takes of them."""

from pathlib import Path
from typing import NamedTuple

__all__ = ["STOLEN", "ProcessorTime", "processor_time"]

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
