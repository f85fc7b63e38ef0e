"""Assembles a region from computed parts, or lists what is missing of it."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from coexec.graph.region import Region


@dataclass(frozen=True, slots=True)
class Taken:
    """``region`` as a box of one part, ``source``."""

    source: Region
    region: Region


@dataclass(frozen=True, slots=True)
class Joined:
    """``region`` as the concatenation of its neighbours along ``axis``, in order."""

    region: Region
    axis: int
    members: tuple["Taken | Joined", ...]


def missing(region: Region, parts: Iterable[Region]) -> tuple[Region, ...]:
    """Disjoint boxes with the elements of ``region`` that no part contains."""
    remaining = [region] if region.size else []
    for part in parts:
        remaining = [box for outer in remaining for box in _without(outer, part)]
    return tuple(remaining)


def assemble(region: Region, parts: Collection[Region]) -> Taken | Joined | None:
    """How to cut and join ``parts``, which may overlap, to ``region``; None if they leave gaps.

    If parts contain the region, the smallest of them is taken. Otherwise the region is divided
    where the fewest parts are cut, and each half is assembled by itself.
    """
    holders = [part for part in parts if part.contains(region)]
    if holders:
        return Taken(min(holders, key=lambda part: part.size), region)
    reaching = _widest(region, parts)
    cuts = [
        (sum(o.start[axis] < at < o.stop[axis] for o in reaching), axis, at)
        for axis in range(len(region.start))
        for at in {edge for o in reaching for edge in (o.start[axis], o.stop[axis])}
        if region.start[axis] < at < region.stop[axis]
    ]
    if not cuts:
        return None
    _, axis, at = min(cuts)
    members: list[Taken | Joined] = []
    for half in (
        region.with_axis(axis, region.start[axis], at),
        region.with_axis(axis, at, region.stop[axis]),
    ):
        assembled = assemble(half, parts)
        if assembled is None:
            return None
        nested = isinstance(assembled, Joined) and assembled.axis == axis
        members += assembled.members if isinstance(assembled, Joined) and nested else (assembled,)
    return Joined(region, axis, tuple(members))


def in_sequence(parts: Iterable[Region], whole: Region) -> bool:
    """Whether ``parts`` are all of ``whole`` and lie one behind the other in its memory, that is
    along the first axis that is longer than one."""
    axis = next((a for a, size in enumerate(whole.shape) if size > 1), None)
    if axis is None:  # one element or none: not made up of several parts
        return list(parts) == [whole]
    at = whole.start[axis]
    for part in sorted(parts, key=lambda part: part.start):
        if part != whole.with_axis(axis, at, part.stop[axis]):
            return False
        at = part.stop[axis]
    return at == whole.stop[axis]


def _without(box: Region, part: Region) -> Iterable[Region]:
    """``box`` without ``part``: the boxes before and behind it, axis by axis."""
    common = box.overlap(part)
    if not common.size:
        yield box
        return
    for axis in range(len(box.start)):
        start, stop = common.start[axis], common.stop[axis]
        if box.start[axis] < start:
            yield box.with_axis(axis, box.start[axis], start)
        if stop < box.stop[axis]:
            yield box.with_axis(axis, stop, box.stop[axis])
        box = box.with_axis(axis, start, stop)


def _widest(region: Region, parts: Iterable[Region]) -> Sequence[Region]:
    """Overlaps of the parts with ``region``, without those that another overlap contains."""
    kept: list[Region] = []
    for common in sorted((region.overlap(p) for p in parts), key=lambda box: -box.size):
        if common.size and not any(other.contains(common) for other in kept):
            kept.append(common)
    return kept
