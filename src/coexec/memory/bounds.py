"""Lower bounds on the memory of every assignment.

Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (arXiv:2001.03288).
"""

from collections.abc import Sequence

from coexec.memory.records import Record, alive_at

__all__ = ["offsets_bound", "positional_maxima", "shared_objects_bound"]


def offsets_bound(records: Sequence[Record]) -> int:
    """Largest number of bytes that are alive at once: every assignment needs that much."""
    return max((sum(sizes) for sizes in _sizes_alive(records)), default=0)


def shared_objects_bound(records: Sequence[Record]) -> int:
    """Sum of the positional maxima: a lower bound on the total of shared objects.

    If the i-th largest tensor alive has some size, i objects are at least as large.
    """
    return sum(positional_maxima(records))


def positional_maxima(records: Sequence[Record]) -> list[int]:
    """For each i, the maximum over all operations of the i-th largest size alive; descending."""
    maxima: list[int] = []
    for sizes in _sizes_alive(records):
        maxima += [0] * (len(sizes) - len(maxima))
        for i, size in enumerate(sorted(sizes, reverse=True)):
            maxima[i] = max(maxima[i], size)
    return maxima


def _sizes_alive(records: Sequence[Record]) -> list[list[int]]:
    return [[records[i].size_bytes for i in alive] for alive in alive_at(records).values()]
