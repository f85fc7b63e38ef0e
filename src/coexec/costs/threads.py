"""Seconds of a task on a number of equal cores, from its seconds on other numbers of them."""

from bisect import bisect_left
from collections.abc import Mapping

SERIAL_S = 45e-6
"""Seconds of a task on several threads that more threads do not shorten: waking and joining them,
and work that is not divided. On a Xeon, ONNX Runtime's times of nine networks with 2, 4, 8 and 16
threads follow a + b / threads, and a is 33 to 90 us for each task, in the median 45 us."""


def on_cores(known_s: Mapping[int, float], cores: int) -> float:
    """Seconds of a task on ``cores`` cores, by Amdahl's law: serial + parallel / cores.

    Serial and parallel part are those of the two nearest known numbers of cores; with one known
    number, the serial part is `SERIAL_S`, or the whole task if it gains nothing from threads.
    Beyond the known numbers, seconds change by at most the ratio of the numbers of cores.

    Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities", AFIPS 1967.

    Args:
        known_s: seconds by number of cores; at least one.
    """
    if cores in known_s:
        return known_s[cores]
    counts = sorted(known_s)
    if len(counts) == 1:
        return _with_serial(known_s[counts[0]], counts[0], cores)
    after = min(max(1, bisect_left(counts, cores)), len(counts) - 1)
    fewer, more = counts[after - 1 : after + 1]
    parallel_s = (known_s[fewer] - known_s[more]) / (1 / fewer - 1 / more)
    seconds = known_s[more] + parallel_s * (1 / cores - 1 / more)
    if cores > more:
        return max(seconds, known_s[more] * more / cores)
    if cores < fewer:
        return min(max(seconds, known_s[fewer]), known_s[fewer] * fewer / cores)
    return seconds


def _with_serial(seconds: float, known: int, cores: int) -> float:
    """Seconds on ``cores`` cores of a task that takes ``seconds`` on ``known`` cores."""
    one_s = seconds if known == 1 else max(seconds, known * (seconds - SERIAL_S))
    return min(one_s, one_s / cores + SERIAL_S)
