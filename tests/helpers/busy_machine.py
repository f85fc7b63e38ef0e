"""A stopwatch of a machine that other programs keep busy."""

from itertools import count

from coexec.engines.detect import allowed_threads
from coexec.profiling.processors import ProcessorTime
from coexec.selection.quiet_moment import Stopwatch


def used_by_others(share: float) -> Stopwatch:
    """Clocks that go on by a second with each reading, and other programs that use this share of
    all processors."""
    now_s, busy_s = count(0.0), count(0.0, share * len(allowed_threads()))
    return Stopwatch(
        now_s=lambda: next(now_s),
        used_s=lambda: 0.0,
        processor_time=lambda: ProcessorTime(next(busy_s)),
    )
