"""Modules of a plan that splits tasks: pieces, written in the operators of the engine they run on.

The model is lowered once, with all tasks apart; which pieces a plan makes of them changes nothing
in it. A piece is made of the nodes of its task. Going backwards from the region that it computes,
each node is cut by the rule (`ir.rules`) of the standard operator that it stands for: windows keep
padding at the tensor's own borders only, of weights a view is taken. Nodes that no rule is known
of are replaced by those of the model as it was given.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from coexec.frontend.dialect import LAST, PLAIN, Layout
from coexec.frontend.lowered import Lowered
from coexec.frontend.module import Gather, GatheredBox, Module
from coexec.frontend.parts import part_name
from coexec.frontend.writing import Writer
from coexec.ir.graph import Graph, Piece
from coexec.ir.region import Region
from coexec.plans.schedule import Part, Schedule, Segment, Supply
from coexec.system.hardware import Place

__all__ = ["cut_pieces"]


class _Handed(NamedTuple):
    """A part of a tensor, in a layout."""

    tensor: str
    region: Region
    layout: Layout


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
    wanted: list[dict[_Handed, None]] = [{} for _ in schedule.segments]
    inputs: list[dict[str, _Handed]] = []
    for segment in schedule.segments:
        own: dict[str, _Handed] = {}
        for name, region in segment.reads:
            supplies = schedule.supplies.get((segment.index, (name, region)), ())
            made = _Handed(name, region, exchange.of(segment, (name, region), supplies))
            for supply in supplies:
                wanted[supply.segment][_Handed(name, supply.made, made.layout)] = None
            value = part_name(*made, graph)
            if (gather := _gather(made, supplies, graph, lowered[segment.place])) is not None:
                # Each segment has boxes of its own, also of what somebody else has as it is.
                value = f"{value}, for segment {segment.index}"
                gathers[value] = gather
            own[value] = made
        inputs.append(own)
        for name, region in segment.writes:
            if name in graph.outputs:
                wanted[segment.index][_Handed(name, region, PLAIN)] = None
    needed = {name for row in wanted for name, _, _ in row} | _read_by_parts(schedule)
    modules = []
    for segment, own, asked in zip(schedule.segments, inputs, wanted, strict=True):
        writer = Writer(graph, lowered[segment.place], plain)
        for value, part in own.items():
            writer.read(*part, value)
        for pieces in _runs(segment, graph):
            if graph.whole_piece(graph.task[pieces[0].task]) == pieces[0]:
                tasks = [graph.task[piece.task] for piece in pieces]
                writer.add_whole(tasks, needed)
            else:
                writer.add(pieces[0])
        modules.append(writer.module(f"segment_{segment.index}", list(asked)))
    return tuple(modules), gathers


def _read_by_parts(schedule: Schedule) -> set[str]:
    """The tensors that split tasks read: of what whole tasks make for them, parts are taken."""
    graph = schedule.graph
    return {
        name
        for segment in schedule.segments
        for piece in segment.pieces
        if piece != graph.whole_piece(graph.task[piece.task])
        for name in graph.task[piece.task].inputs
    }


def _runs(segment: Segment, graph: Graph) -> Iterable[list[Piece]]:
    """Pieces that are whole and follow each other together; of split tasks, each alone."""
    run: list[Piece] = []
    for piece in segment.pieces:
        if piece == graph.whole_piece(graph.task[piece.task]):
            run.append(piece)
            continue
        if run:
            yield run
        run = []
        yield [piece]
    if run:
        yield run


def _gather(made: _Handed, supplies: Sequence[Supply], graph: Graph, low: Lowered) -> Gather | None:
    """None if one segment makes exactly this, or it is an input of the model as it is fed."""
    name, region, layout = made
    tensor = graph.tensors[name]
    if not supplies:
        if region == tensor.whole:
            return None
        return Gather(PLAIN, (GatheredBox(name, region, region.relative_to(region)),))
    if len(supplies) == 1 and supplies[0].made == region:
        return None
    whole = tensor.whole
    if layout > 0:
        whole = whole.with_axis(1, 0, low.tensors[low.native(name)].shape[1])
    return Gather(layout, tuple(
        GatheredBox(part_name(name, s.made, layout, graph),
               _inside(s.box, s.made, tensor.whole, whole),
               _inside(s.box, region, tensor.whole, whole))
        for s in supplies
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

    def of(self, reader: Segment, part: Part, supplies: Sequence[Supply]) -> Layout:
        """The layout that reader and makers have in common, if all boxes end where blocks end."""
        name, region = part
        layout = self._native(reader.place, name)
        if layout == PLAIN or not supplies:
            return PLAIN
        segments, tensor = self._schedule.segments, self._schedule.graph.tensors[name]
        own = self._lowered[reader.place]
        places = {segments[s.segment].place for s in supplies}
        if any(self._native(place, name) != layout for place in places):
            return PLAIN
        boxes = [region, *(s.box for s in supplies), *(s.made for s in supplies)]
        if layout == LAST:
            return LAST if all(box == tensor.whole for box in boxes) else PLAIN
        channels = tensor.shape[1]
        alike = channels % layout == 0 or all(self._lowered[place] is own for place in places)
        aligned = all(
            box.start[1] % layout == 0 and (box.stop[1] % layout == 0 or box.stop[1] == channels)
            for box in boxes
        )
        return layout if alike and aligned else PLAIN

    def _native(self, place: Place, name: str) -> Layout:
        low = self._lowered[place]
        return low.layout(low.native(name))
