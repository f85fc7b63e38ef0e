"""What follows from a plan: segments, transfers, and what may start when.

The simulator drives `Progress` with a virtual clock, the executor with threads; neither knows
more about the order of things than this file says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from coexec.ir.graph import Graph, Piece
from coexec.ir.region import Region
from coexec.ir.stitch import in_sequence
from coexec.system.hardware import Place

__all__ = [
    "Part",
    "Progress",
    "Schedule",
    "Segment",
    "Supply",
    "Transfer",
    "as_made",
    "by_device",
    "ended_before",
]

Part = tuple[str, Region]
"""A region of a named tensor."""


@dataclass(frozen=True)
class Segment:
    """A maximal run of pieces on one device and engine that is compiled and launched as a unit.

    Once started it needs nothing from elsewhere, and nobody elsewhere needs its results before
    its end.
    """

    index: int
    device: str
    engine: str
    pieces: tuple[Piece, ...]
    reads: tuple[Part, ...]
    """What it needs from outside: inputs of the model and results of other segments."""
    writes: tuple[Part, ...]
    """What others need of it: other segments, or the caller."""
    after: tuple[int, ...]
    """Segments that must have ended before: the one before it on its device, and those it reads.
    On a place that is launched ahead, those before have to be launched only."""

    @property
    def place(self) -> Place:
        return Place(self.device, self.engine)

    @property
    def name(self) -> str:
        """The first and last task, as it appears in a trace."""
        if not self.pieces:
            return f"segment {self.index}"
        first, last = self.pieces[0].task, self.pieces[-1].task
        return first if len(self.pieces) == 1 else f"{first} … {last} ({len(self.pieces)})"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A region of a tensor that one segment makes and a segment of another place reads first.

    A tensor moves to a place once and stays until its last reader there, so later readers there
    have no transfer of their own. Between two engines of one device it moves if their memories
    differ.
    """

    tensor: str
    region: Region
    size_bytes: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Supply:
    """Where a segment gets a box of a tensor from."""

    segment: int
    made: Region
    """What that segment writes of the tensor at once."""
    box: Region
    """What of it is read."""


def as_made(supplies: Sequence[Supply], region: Region) -> bool:
    """Whether one segment makes exactly ``region``, so that nothing has to be put together."""
    return [supply.made for supply in supplies] == [region]


@dataclass(frozen=True)
class Schedule:
    """Everything that is derived from a plan."""

    graph: Graph
    segments: tuple[Segment, ...]
    """In an order in which they could run one after the other."""
    transfers: tuple[Transfer, ...]
    supplies: Mapping[tuple[int, Part], tuple[Supply, ...]] = field(default_factory=dict)
    """By segment and what it reads: the boxes that make it up, which do not overlap. Nothing for
    inputs of the model."""

    @cached_property
    def by_device(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the segments of each device that has some, in order."""
        return by_device(self.segments)

    def stitched(self, segment: Segment) -> list[tuple[str, int, int]]:
        """Each part that a segment reads and that has to be put together from boxes: its tensor,
        its bytes, and those of them that the same place has made. Not what another makes as it is
        read, nor what others can write side by side."""
        found = []
        for name, region in segment.reads:
            supplies = self.supplies.get((segment.index, (name, region)), ())
            tensor = self.graph.tensors[name]
            fed = not supplies and region == tensor.whole
            whole = all(s.box == s.made for s in supplies) and region == tensor.whole
            in_place = whole and in_sequence((s.made for s in supplies), region)
            if not (fed or as_made(supplies, region) or in_place):
                own = sum(s.box.size for s in supplies
                          if self.segments[s.segment].place == segment.place)  # fmt: skip
                found.append((name, region.size * tensor.item_bytes, own * tensor.item_bytes))
        return found

    @property
    def places(self) -> tuple[Place, ...]:
        """Where something is computed."""
        return tuple(dict.fromkeys(segment.place for segment in self.segments))

    @cached_property
    def incoming(self) -> Mapping[int, tuple[Transfer, ...]]:
        """The transfers that end at a segment."""
        found: dict[int, list[Transfer]] = {s.index: [] for s in self.segments}
        for transfer in self.transfers:
            found[transfer.target].append(transfer)
        return {index: tuple(transfers) for index, transfers in found.items()}


def by_device(segments: Sequence[Segment]) -> Mapping[str, tuple[int, ...]]:
    """Indices of the segments of each device that has some, in order."""
    found: dict[str, list[int]] = {}
    for segment in segments:
        found.setdefault(segment.device, []).append(segment.index)
    return {device: tuple(order) for device, order in found.items()}


def ended_before(segments: Sequence[Segment]) -> list[int]:
    """For each segment, as the bits of an integer, all segments that ended before it starts."""
    found: list[int] = []
    for segment in segments:
        bits = 0
        for before in segment.after:
            bits |= found[before] | 1 << before
        found.append(bits)
    return found


class Progress:
    """Which segments may start, given which have ended. Knows no clock and no thread.

    With several requests, each device works on them in order: request r + 1 starts on a device as
    soon as it has nothing left of request r. A node is ``request * segments + segment``.
    """

    def __init__(self, segments: Sequence[Segment], requests: int = 1) -> None:
        count = len(segments)
        self._waiting: list[int] = []
        self._followers: list[list[int]] = [[] for _ in range(count * requests)]
        ends = {d: (order[0], order[-1]) for d, order in by_device(segments).items()}
        last_of_first = dict(ends.values())
        for request in range(requests):
            for segment in segments:
                node = request * count + segment.index
                before = [request * count + i for i in segment.after]
                if request and segment.index in last_of_first:
                    before.append((request - 1) * count + last_of_first[segment.index])
                self._waiting.append(len(before))
                for i in before:
                    self._followers[i].append(node)
        self._fresh = self._waiting.copy()

    def again(self) -> "Progress":
        """The same from the beginning, without working out once more who waits for whom."""
        other = Progress.__new__(Progress)
        other._waiting, other._followers = self._fresh.copy(), self._followers
        other._fresh = self._fresh
        return other

    def ready(self) -> list[int]:
        """The nodes that may start before anything has ended."""
        return [i for i, missing in enumerate(self._waiting) if missing == 0]

    def finish(self, node: int) -> list[int]:
        """Note that ``node`` has ended; the nodes that may start now and could not before."""
        freed = []
        for follower in self._followers[node]:
            self._waiting[follower] -= 1
            if self._waiting[follower] == 0:
                freed.append(follower)
        return freed
