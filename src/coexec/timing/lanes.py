"""Periods that overlap, side by side: the kernels of a GPU whose branches run at the same time."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from coexec.units import format_seconds

if TYPE_CHECKING:
    from coexec.timing.trace import Detail


def lanes(periods: Sequence[tuple[int, int]]) -> list[int]:
    """The lane of each period, from 0 on: periods of one lane do not overlap, and there are as many
    lanes as periods that overlap at some moment.

    Args:
        periods: start and end, as whole numbers of any unit. One may begin where another ends.
    """
    lane_of = [0] * len(periods)
    busy: list[tuple[int, int]] = []  # end and lane
    free: list[int] = []
    count = 0
    for number in sorted(range(len(periods)), key=periods.__getitem__):
        start, end = periods[number]
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, count)
            count += 1
        lane_of[number] = heappop(free)
        heappush(busy, (end, lane_of[number]))
    return lane_of


def in_nanoseconds(start_s: float, end_s: float) -> tuple[int, int]:
    """A period in whole nanoseconds, as trace viewers count."""
    return round(start_s * 1e9), round(end_s * 1e9)


def kernels_in_words(details: Iterable["Detail"]) -> str:
    """How many kernels or tiles ran, how many at most at the same time, and how long; "" without
    any."""
    kernels = [detail for detail in details if detail.kind != "copy"]
    if not kernels:
        return ""
    deepest = 1 + max(lanes([in_nanoseconds(k.start_s, k.end_s) for k in kernels]))
    work_s = sum(kernel.duration_s for kernel in kernels)
    span_s = max(k.end_s for k in kernels) - min(k.start_s for k in kernels)
    beside = f"up to {deepest} side by side" if deepest > 1 else "one after the other"
    plural = "s" if len(kernels) > 1 else ""
    return (
        f"{len(kernels)} {kernels[0].kind}{plural}, {beside}, {format_seconds(work_s)} of work in "
        f"{format_seconds(span_s)}"
    )
