"""Wait until the threads of a race no longer use the processors, by measuring their CPU time.

A pause of fixed length would not be enough: the threads of ONNX Runtime spin for 10 ms after a run
on one processor and for 50 ms on another.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from coexec.profiling.processors import Load, ProcessorTime, processor_time, with_load

_T = TypeVar("_T")

_WINDOW_S = 0.012
"""Linux updates the CPU time of a thread when the timer of its processor ticks, at most 10 ms
apart. In a shorter window, a spinning thread may seem idle."""
_STEP_S = 0.002
_IDLE_SHARE = 0.1
"""Share of one processor below which it counts as idle. Reading the clocks takes about 0.01, a
spinning thread 1."""
_LIMIT_S = 0.25
"""Limit of a wait: five times as long as any known engine spins."""


def cpu_clock(processes: Collection[int] = ()) -> Callable[[], float]:
    """A clock of the CPU seconds that all threads of this process have used.

    ``processes``: ids of other processes, whose time is added as long as they live (Linux only).
    """

    def used_s() -> float:
        return time.process_time() + math.fsum(map(_used_s, processes))

    return used_s if processes else time.process_time


def _used_s(process: int) -> float:
    try:
        return time.clock_gettime((~process << 3) | 2)  # clock_getcpuclockid(3)
    except OSError:  # the process has ended
        return 0.0


@dataclass(frozen=True)
class Stopwatch:
    """The clocks of a race, in seconds, and its function to sleep."""

    now_s: Callable[[], float] = time.perf_counter
    used_s: Callable[[], float] = time.process_time
    """CPU time of all processes in which rivals run: see `cpu_clock`."""
    sleep: Callable[[float], None] = time.sleep
    processor_time: Callable[[], ProcessorTime] = processor_time

    def timed(self, run: Callable[[], Any]) -> float:
        start_s = self.now_s()
        run()
        return self.now_s() - start_s

    def with_load(self, run: Callable[[], _T]) -> "tuple[_T, Load]":
        """The result of ``run``, and the load by other programs during the run."""
        return with_load(run, self.now_s, self.used_s, self.processor_time)


REAL = Stopwatch()
"""The stopwatch of this process, with real clocks."""


class Rest:
    """Waits until this process no longer keeps the processors busy."""

    def __init__(self, watch: Stopwatch = REAL) -> None:
        self._watch = watch
        self._missed = 0

    def until_idle(self, least_s: float = 0.0) -> bool:
        """Wait ``least_s`` seconds and then until idle; return whether that was within the limit.

        Each time in a row that the limit is reached, it is halved. Otherwise, in a program whose
        other threads are always busy, each turn would take the full limit.
        """
        watch = self._watch
        start_s = watch.now_s()
        limit_s = least_s + max(_WINDOW_S, _LIMIT_S / 2**self._missed)
        readings = deque([(start_s, watch.used_s())])
        while True:
            watch.sleep(_STEP_S)
            now_s, used_s = watch.now_s(), watch.used_s()
            readings.append((now_s, used_s))
            while now_s - readings[1][0] >= _WINDOW_S:  # keep only the last window
                readings.popleft()
            before_s, used_before_s = readings[0]
            window_s = now_s - before_s
            quiet = window_s >= _WINDOW_S and used_s - used_before_s < _IDLE_SHARE * window_s
            if quiet and now_s - start_s >= least_s:
                self._missed = 0
                return True
            if now_s - start_s >= limit_s:
                self._missed += 1
                return False
