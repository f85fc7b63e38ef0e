"""Modules of a plan that splits tasks: pieces, written in the operators of the engine they run on.

The model is lowered once, with all tasks apart; which pieces a plan makes of them changes nothing
in it. A piece is made of the nodes of its task. Going backwards from the region that it computes,
each node is cut by the rule (`ir.rules`) of the standard operator that it stands for: windows keep
padding at the tensor's own borders only, of weights a view is taken. Nodes that no rule is known
of are replaced by those of the model as it was given.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from coexec.frontend.cutting import nodes_of
from coexec.frontend.dialect import FILLED, LAST, PLAIN, WIDE, Layout, ends_with_blocks
from coexec.frontend.lowered import Lowered, reads
from coexec.frontend.module import Gather, GatheredBox, Module
from coexec.frontend.parts import part_name
from coexec.frontend.writing import Writer
from coexec.ir.graph import Graph, Piece, Tensor
from coexec.ir.region import Region
from coexec.plans.schedule import Part, Schedule, Segment, Supply, as_made
from coexec.system.hardware import Place

__all__ = ["changing_layout", "cut_pieces", "handed_on", "leaving_blocks"]


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
    needed = handed_on(schedule) | set(graph.outputs)
    exchange = _Exchange(schedule, lowered)
    gathers: dict[str, Gather] = {}
    wanted: list[dict[_Handed, None]] = [{} for _ in schedule.segments]
    inputs: list[dict[str, _Handed]] = []
    for segment in schedule.segments:
        own: dict[str, _Handed] = {}
        for handed, supplies in exchange.inputs(segment, needed):
            for supply in supplies:
                made = _Handed(handed.tensor, supply.made, handed.layout)
                wanted[supply.segment][made] = None
            value = part_name(*handed, graph)
            gather = _gather(handed, supplies, graph, lowered[segment.place])
            if gather is not None:
                # Each segment has boxes of its own, also of what somebody else has as it is.
                value = f"{value}, for segment {segment.index}"
                gathers[value] = gather
            own[value] = handed
        inputs.append(own)
        for name, region in segment.writes:
            if name in graph.outputs:
                wanted[segment.index][_Handed(name, region, PLAIN)] = None
    modules = []
    for segment, own, asked in zip(schedule.segments, inputs, wanted, strict=True):
        writer = Writer(graph, lowered[segment.place], plain)
        for value, part in own.items():
            writer.read(*part, value)
        for pieces in _runs(segment, graph):
            task = graph.task[pieces[0].task]
            if pieces[0] == graph.whole_piece(task):
                writer.add_whole([graph.task[piece.task] for piece in pieces], needed)
            else:
                writer.add(pieces[0])
        modules.append(writer.module(f"segment_{segment.index}", list(asked)))
    return tuple(modules), gathers


def handed_on(schedule: Schedule) -> set[str]:
    """The tensors that are read where they are not made: by another segment, by a task that is
    split, as these take parts, and behind such a task. Of all others, engines make what they like.
    """
    graph = schedule.graph
    names = {name for segment in schedule.segments for name, _ in segment.reads}
    for segment in schedule.segments:
        for run in _runs(segment, graph):
            tasks = [graph.task[piece.task] for piece in run]
            own = {name for task in tasks for name in task.outputs}
            names.update(name for task in tasks for name in task.inputs if name not in own)
    return names


def changing_layout(graph: Graph, source: Lowered, target: Lowered) -> Set[str]:
    """The tensors that ``source`` may make and ``target`` read which do not lie as they were made
    when they are read, however they are divided: see `_Exchange`."""
    if source is target:
        return frozenset()
    read = dict.fromkeys(name for task in graph.tasks for name in task.inputs)
    made = (graph.tensors[name] for name in read if name in graph.producer)
    return frozenset(t.name for t in made if not t.opaque and _changes(t, source, target))


def leaving_blocks(graph: Graph, own: Lowered, others: Iterable[Lowered]) -> Set[str]:
    """The tensors that an engine has in blocks and does not put together in blocks with what one of
    ``others`` has made of them."""
    changing = {name for other in others for name in changing_layout(graph, other, own)}
    return frozenset(n for n in changing if own.native_layout(graph.tensors[n]) > PLAIN)


def _changes(tensor: Tensor, source: Lowered, target: Lowered) -> bool:
    layout = source.native_layout(tensor)
    if layout != target.native_layout(tensor):
        return True
    exact = layout <= PLAIN or (source.has_exactly(tensor) and target.has_exactly(tensor))
    return not exact or tensor.name in target.read_outside


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


def _gather(
    handed: _Handed, supplies: Sequence[Supply], graph: Graph, low: Lowered
) -> Gather | None:
    """None if one segment makes exactly this, or it is an input of the model as it is fed."""
    name, region, layout = handed
    tensor = graph.tensors[name]
    if not supplies:
        if region == tensor.whole:
            return None
        return Gather(PLAIN, (GatheredBox(name, region, region.relative_to(region)),))
    if as_made(supplies, region):
        return None
    whole = tensor.whole
    if layout > 0:
        whole = whole.with_axis(1, 0, low.filled(name, tensor.shape[1]))
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

    def inputs(
        self, reader: Segment, needed: Collection[str]
    ) -> Iterable[tuple[_Handed, Sequence[Supply]]]:
        """What a segment gets from outside, and who supplies it."""
        uses = self._uses(reader, needed)
        for name, region in reader.reads:
            supplies = self._schedule.supplies.get((reader.index, (name, region)), ())
            common = self._common(reader, (name, region), supplies)
            # What the engine does not read is there for the model's own operators.
            used = uses.get(name, {common})
            unblocked = self._unblocked(reader, name, supplies)
            layouts = {common if layout == common else unblocked for layout in used}
            for layout in sorted(layouts):
                yield _Handed(name, region, layout), supplies

    def _uses(self, reader: Segment, needed: Collection[str]) -> dict[str, set[Layout]]:
        """By tensor that others make: the layouts in which the engine reads it."""
        graph, low = self._schedule.graph, self._lowered[reader.place]
        found: dict[str, set[Layout]] = {}
        for pieces in _runs(reader, graph):
            own = {name for piece in pieces for name in graph.task[piece.task].outputs}
            wanted = [name for name in own if name in needed]
            read = {v for i in nodes_of(low, wanted, own) for v in reads(low.nodes[i])}
            read.update(low.native(name) for name in wanted)
            for value in read:
                tensor = low.stands_for.get(value, value)
                if tensor in graph.tensors and tensor not in own:
                    found.setdefault(tensor, set()).add(low.held(value, graph.tensors[tensor]))
        return found

    def _common(self, reader: Segment, part: Part, supplies: Sequence[Supply]) -> Layout:
        """The layout that reader and makers have in common, if all boxes end where blocks end."""
        name, region = part
        layout = self._native(reader.place, name)
        unblocked = self._unblocked(reader, name, supplies)
        if layout in (PLAIN, WIDE, FILLED) or not supplies:
            return unblocked
        segments, tensor = self._schedule.segments, self._schedule.graph.tensors[name]
        own = self._lowered[reader.place]
        places = {segments[s.segment].place for s in supplies}
        if any(self._native(place, name) != layout for place in places):
            return unblocked
        boxes = [region, *(s.box for s in supplies), *(s.made for s in supplies)]
        if layout == LAST:
            return LAST if all(box == tensor.whole for box in boxes) else PLAIN
        aligned = all(ends_with_blocks(box, tensor.shape, layout) for box in boxes)
        return layout if aligned and self._fill_alike(name, boxes, own, places) else unblocked

    def _fill_alike(
        self, name: str, boxes: Iterable[Region], own: Lowered, places: Iterable[Place]
    ) -> bool:
        """Whether reader and makers have the same channels at the same places of blocks.

        What fills a block may be anything but in one lowered model, and gaps between channels
        are where that model has joined tensors: part of the channels lies elsewhere there.
        """
        tensor = self._schedule.graph.tensors[name]
        lowered = [own, *(self._lowered[place] for place in places)]
        if all(low.has_exactly(tensor) for low in lowered):
            return True
        channels = (0, tensor.shape[1])
        whole = all((box.start[1], box.stop[1]) == channels for box in boxes)
        return all(low is own for low in lowered) and (whole or name not in own.places)

    def _unblocked(self, reader: Segment, name: str, supplies: Sequence[Supply]) -> Layout:
        """How the model has a tensor, but in float32 if reader and makers have it so."""
        tensor = self._schedule.graph.tensors[name]
        makers = (self._schedule.segments[s.segment] for s in supplies)
        places = {s.place for s in (reader, *makers)} if supplies else set()
        found = {self._lowered[p].dialect.unblocked(self._native(p, name), tensor) for p in places}
        return WIDE if found == {WIDE} else PLAIN

    def _native(self, place: Place, name: str) -> Layout:
        return self._lowered[place].native_layout(self._schedule.graph.tensors[name])
