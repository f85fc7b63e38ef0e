"""Modules of a plan that splits tasks: pieces, written in the operators of the engine they run on.

The model is lowered once, with all tasks apart; which pieces a plan makes of them changes nothing
in it. A piece is made of the nodes of its task. Going backwards from the region that it computes,
each node is cut by the rule (`ir.rules`) of the standard operator that it stands for: windows keep
padding at the tensor's own borders only, of weights a view is taken. Nodes that no rule is known
of are replaced by those of the model as it was given.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coexec.frontend.lowered import Lowered
from coexec.frontend.module import Gather, Module, Source
from coexec.frontend.writing import Writer, part_name
from coexec.ir.graph import Graph
from coexec.ir.region import Region
from coexec.plans.schedule import Origin, Part, Schedule, Segment
from coexec.system.hardware import Place

__all__ = ["cut_pieces"]


class _Made(NamedTuple):
    """A part of a tensor, in a layout."""

    tensor: str
    region: Region
    block: int


def cut_pieces(
    schedule: Schedule, lowered: Mapping[Place, Lowered], plain: Lowered
) -> tuple[tuple[Module, ...], dict[str, Gather]]:
    """One module for each segment, in order; and how those of their inputs that no segment makes
    as they are read are put together.

    Args:
        plain: the model as it was given.

    Raises:
        PlanError: a piece is impossible.
    """
    graph = schedule.graph
    exchange = _Exchange(schedule, lowered)
    gathers: dict[str, Gather] = {}
    wanted: list[dict[_Made, None]] = [{} for _ in schedule.segments]
    inputs: list[list[_Made]] = []
    for segment in schedule.segments:
        own: list[_Made] = []
        for name, region in segment.reads:
            origins = schedule.origins.get((segment.index, (name, region)), ())
            made = _Made(name, region, exchange.of(segment, (name, region), origins))
            own.append(made)
            for origin in origins:
                wanted[origin.segment][_Made(name, origin.made, made.block)] = None
            if (gather := _gather(made, origins, graph, lowered[segment.place])) is not None:
                gathers[part_name(*made, graph)] = gather
        inputs.append(own)
        for name, region in segment.writes:
            if name in graph.outputs:
                wanted[segment.index][_Made(name, region, 0)] = None
    modules = []
    for segment, own in zip(schedule.segments, inputs, strict=True):
        writer = Writer(graph, lowered[segment.place], plain)
        for made in own:
            writer.read(*made)
        for piece in segment.pieces:
            writer.add(piece)
        modules.append(writer.module(f"segment_{segment.index}", list(wanted[segment.index])))
    return tuple(modules), gathers


def _gather(made: _Made, origins: Sequence[Origin], graph: Graph, low: Lowered) -> Gather | None:
    """None if one segment makes exactly this, or it is an input of the model as it is fed."""
    name, region, block = made
    tensor = graph.tensors[name]
    if not origins:
        if region == tensor.whole:
            return None
        return Gather(0, (Source(name, region, region.relative_to(region)),))
    if len(origins) == 1 and origins[0].made == region:
        return None
    whole = tensor.whole
    if block:
        whole = whole.with_axis(1, 0, low.tensors[low.native(name)].shape[1])
    return Gather(block, tuple(
        Source(part_name(name, o.made, block, graph),
               _inside(o.box, o.made, tensor.whole, whole),
               _inside(o.box, region, tensor.whole, whole))
        for o in origins
    ))  # fmt: skip


def _inside(box: Region, outer: Region, tensor: Region, filled: Region) -> Region:
    """``box`` in coordinates that start where ``outer`` starts, to the end of the last block."""
    inside = box.relative_to(outer)
    if tensor == filled or box.stop[1] < tensor.stop[1]:
        return inside
    return inside.with_axis(1, inside.start[1], inside.stop[1] + filled.stop[1] - tensor.stop[1])


class _Exchange:
    """In which layout segments hand tensors on."""

    def __init__(self, schedule: Schedule, lowered: Mapping[Place, Lowered]) -> None:
        self._schedule, self._lowered = schedule, lowered

    def of(self, reader: Segment, part: Part, origins: Sequence[Origin]) -> int:
        """The block that reader and makers have in common, if all boxes end where blocks end."""
        name, region = part
        block = self._native(reader.place, name)
        if not block or not origins:
            return 0
        segments = self._schedule.segments
        places = {segments[o.segment].place for o in origins}
        own = self._lowered[reader.place]
        channels = self._schedule.graph.tensors[name].shape[1]
        boxes = [region, *(o.box for o in origins), *(o.made for o in origins)]
        fits = all(
            self._native(place, name) == block
            and (self._lowered[place] is own or channels % block == 0)
            for place in places
        )
        aligned = all(
            box.start[1] % block == 0 and (box.stop[1] % block == 0 or box.stop[1] == channels)
            for box in boxes
        )
        return block if fits and aligned else 0

    def _native(self, place: Place, name: str) -> int:
        low = self._lowered[place]
        return low.dialect.block if low.native(name) in low.blocked else 0
