"""A stopwatch of a machine that other programs keep busy."""

import os
import time

from coexec.profiling.processors import ProcessorTime
from coexec.selection.quiet_moment import Stopwatch

__all__ = ["used_by_others"]


def used_by_others(share: float) -> Stopwatch:
    """Real clocks, except that other programs use this share of all processors."""
    processors = os.cpu_count() or 1

    def busy() -> ProcessorTime:
        return ProcessorTime(time.process_time() + share * processors * time.perf_counter())

    return Stopwatch(processor_time=busy)
