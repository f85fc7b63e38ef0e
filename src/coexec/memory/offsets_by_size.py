"""Offsets in one arena: the largest tensors first, each into the smallest gap that holds it."""

from bisect import insort
from collections.abc import Sequence

from coexec.memory.records import Assignment, Record

__all__ = ["assign"]


def assign(records: Sequence[Record]) -> Assignment:
    """Put each tensor into the smallest gap between the placed tensors that are alive with it.

    Source: Pisarchyk and Lee (arXiv:2001.03288), greedy by size for offset calculation; TensorFlow
    Lite's GPU delegate. Where no gap is large enough, it comes behind the last of those tensors.
    Only for memory whose parts can be addressed by their offset: buffers, not images.

    Promises at most naive's total; it equals the bound on every network of the zoo. O(n^2).
    """
    offsets = [0] * len(records)
    placed: list[tuple[int, int]] = []  # (offset, tensor), sorted
    for i in sorted(range(len(records)), key=lambda i: -records[i].size_bytes):
        alive = [(start, records[j]) for start, j in placed if records[j].alive_with(records[i])]
        offsets[i] = _best_fit(alive, records[i].size_bytes)
        insort(placed, (offsets[i], i))
    ends = (offset + r.size_bytes for offset, r in zip(offsets, records, strict=True))
    return Assignment.arena(offsets, max(ends, default=0))


def _best_fit(alive: Sequence[tuple[int, Record]], size_bytes: int) -> int:
    """Start of the smallest gap that is large enough; else the end of the last tensor."""
    end = 0
    gaps: list[tuple[int, int]] = []
    for start, record in alive:
        if start - end >= size_bytes:
            gaps.append((start - end, end))
        end = max(end, start + record.size_bytes)
    return min(gaps)[1] if gaps else end
