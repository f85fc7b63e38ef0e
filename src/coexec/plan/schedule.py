"""The schedule that follows from a plan: segments, transfers, and the order of starts.

The simulator drives `Progress` with a virtual clock. The executor carries out the programs of
`coexec.plan.program`. Both take the order of segments from this file alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from coexec.graph.graph import Graph, Piece
from coexec.graph.region import Region
from coexec.graph.stitch import in_sequence
from coexec.hardware.hardware import Place

TaskRegion = tuple[str, Region]
"""A region of a named tensor."""


@dataclass(frozen=True)
class Segment:
    """A maximal run of pieces on one device that is compiled and launched as a unit.

    A started segment needs nothing more from other devices, and no other device needs its results
    before its end.
    """

    index: int
    device: str
    engine: str
    pieces: tuple[Piece, ...]
    reads: tuple[TaskRegion, ...]
    """Parts from outside: inputs of the model and results of other segments."""
    writes: tuple[TaskRegion, ...]
    """Parts that other segments or the caller need."""
    after: tuple[int, ...]
    """Segments that must have ended before: the previous segment on its device, and those whose
    results it reads. On a place that launches ahead, they must only have been launched."""

    @property
    def place(self) -> Place:
        return Place(self.device, self.engine)

    @property
    def name(self) -> str:
        """The first and last task, as shown in a trace."""
        if not self.pieces:
            return f"segment {self.index}"
        first, last = self.pieces[0].task, self.pieces[-1].task
        return first if len(self.pieces) == 1 else f"{first} … {last} ({len(self.pieces)})"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A region of a tensor that one segment makes and a segment on another place reads first.

    A tensor moves to a place once and stays until its last reader there, so later readers there
    have no transfer. Between devices that share a processor, it moves if their memories
    differ.
    """

    tensor: str
    region: Region
    size_bytes: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Supply:
    """A box of a tensor that one segment reads from another one."""

    segment: int
    made: Region
    """Region of the tensor that the other segment writes at once."""
    box: Region
    """Region of it that is read."""


def as_made(supplies: Sequence[Supply], region: Region) -> bool:
    """Whether one segment makes exactly ``region``, so that nothing has to be stitched."""
    return [supply.made for supply in supplies] == [region]


@dataclass(frozen=True)
class Schedule:
    """Everything that is derived from a plan."""

    graph: Graph
    segments: tuple[Segment, ...]
    """All segments, in an order in which they could run one after the other."""
    transfers: tuple[Transfer, ...]
    supplies: Mapping[tuple[int, TaskRegion], tuple[Supply, ...]] = field(default_factory=dict)
    """By segment and part that it reads: the boxes that make up the part, without overlap. Inputs
    of the model have no boxes."""

    @cached_property
    def by_device(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the segments of each device that has some, in order."""
        return by_device(self.segments)

    def stitched(self, segment: Segment) -> list[tuple[str, int, int]]:
        """Parts of a segment's reads that must be stitched from boxes: tensor, bytes, and the bytes
        that the same place has made. Not listed: parts that another segment makes exactly as they
        are read, and parts that other segments can write side by side."""
        parts = []
        for name, region in segment.reads:
            supplies = self.supplies.get((segment.index, (name, region)), ())
            tensor = self.graph.tensors[name]
            fed = not supplies and region == tensor.whole
            whole = all(s.box == s.made for s in supplies) and region == tensor.whole
            in_place = whole and in_sequence((s.made for s in supplies), region)
            if not (fed or as_made(supplies, region) or in_place):
                own_elements = sum(
                    s.box.size for s in supplies if self.segments[s.segment].place == segment.place
                )
                parts.append(
                    (name, region.size * tensor.item_bytes, own_elements * tensor.item_bytes)
                )
        return parts

    @cached_property
    def joined_bytes(self) -> Mapping[int, int]:
        """Bytes of the outputs that are written in parts, by the last segment of each device that
        writes a part of them. The host copies them to the caller when all of these have ended."""
        last: dict[tuple[str, str], int] = {}
        for segment in self.segments:
            for name, region in segment.writes:
                tensor = self.graph.tensors[name]
                if name in self.graph.outputs and region != tensor.whole:
                    last[segment.device, name] = segment.index
        joined: dict[int, int] = {}
        for (_, name), index in last.items():
            size_bytes = self.graph.tensors[name].size_bytes
            joined[index] = joined.get(index, 0) + size_bytes
        return joined

    @property
    def places(self) -> tuple[Place, ...]:
        """Places that compute something."""
        return tuple(dict.fromkeys(segment.place for segment in self.segments))

    @cached_property
    def incoming(self) -> Mapping[int, tuple[int, ...]]:
        """Indices of the transfers to a segment, by segment."""
        incoming: dict[int, tuple[int, ...]] = {s.index: () for s in self.segments}
        for number, transfer in enumerate(self.transfers):
            incoming[transfer.target] += (number,)
        return incoming


def by_device(segments: Sequence[Segment]) -> Mapping[str, tuple[int, ...]]:
    """Indices of the segments of each device that has some, in order."""
    indices: dict[str, list[int]] = {}
    for segment in segments:
        indices.setdefault(segment.device, []).append(segment.index)
    return {device: tuple(order) for device, order in indices.items()}


def ended_before(segments: Sequence[Segment]) -> list[int]:
    """For each segment, the set of all segments that ended before it starts, as bits of an
    integer."""
    bits_by_segment: list[int] = []
    for segment in segments:
        bits = 0
        for before in segment.after:
            bits |= bits_by_segment[before] | 1 << before
        bits_by_segment.append(bits)
    return bits_by_segment


class Progress:
    """Finds the segments that may start, from the segments that have ended. Needs no clock and no
    thread.

    With several requests, each device runs them in order: request r + 1 starts on a device as soon
    as the device has nothing left of request r. A node is ``request * segments + segment``.
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

    def ready(self) -> list[int]:
        """Nodes that may start before any node has ended."""
        return [i for i, missing in enumerate(self._waiting) if missing == 0]

    def finish(self, node: int) -> list[int]:
        """Mark ``node`` as ended; return the nodes for which it was the last predecessor."""
        freed = []
        for follower in self._followers[node]:
            self._waiting[follower] -= 1
            if self._waiting[follower] == 0:
                freed.append(follower)
        return freed
