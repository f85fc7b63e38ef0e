"""Modules of a plan that splits tasks: pieces, written in the operators of their engine.

The model is lowered once, with all tasks apart; this does not depend on the pieces of a plan. A
piece consists of the nodes of its task. Going backwards from the region that it computes, each node
is cut by the rule (`coexec.graph.rules`) of the standard operator that it stands for: windows keep
padding at the tensor's own borders only, weights are cut as views. Nodes without a known rule are
replaced by those of the given model.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from coexec.graph.graph import Graph, Piece, Tensor
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.lowering.cutting import nodes_of
from coexec.lowering.layout import NHWC, PLAIN, Layout
from coexec.lowering.lowered_model import LoweredModel, reads
from coexec.lowering.module import Gather, GatheredBox, Module
from coexec.lowering.module_writer import ModuleWriter
from coexec.lowering.tensor_parts import part_name
from coexec.plan.schedule import Schedule, Segment, Supply, TaskRegion, as_made


class _PartInLayout(NamedTuple):
    """A part of a tensor, in a layout."""

    tensor: str
    region: Region
    layout: Layout


def cut_pieces(
    schedule: Schedule, lowered: Mapping[Place, LoweredModel], unlowered: LoweredModel
) -> tuple[tuple[Module, ...], dict[str, Gather]]:
    """One module for each segment, in order; and the boxes of those inputs that no segment makes in
    the form in which they are read.

    Args:
        unlowered: the model as it was given.

    Raises:
        PlanError: a piece is impossible.
    """
    graph = schedule.graph
    needed = border_tensors(schedule) | set(graph.outputs)
    handover = _Handover(schedule, lowered)
    gathers: dict[str, Gather] = {}
    outputs: list[dict[_PartInLayout, None]] = [{} for _ in schedule.segments]
    inputs: list[dict[str, _PartInLayout]] = []
    for segment in schedule.segments:
        own: dict[str, _PartInLayout] = {}
        for part, supplies in handover.inputs(segment, needed):
            for supply in supplies:
                made = _PartInLayout(part.tensor, supply.made, part.layout)
                outputs[supply.segment][made] = None
            value = part_name(*part, graph)
            gather = _gather(part, supplies, graph, lowered[segment.place])
            if gather is not None:
                # The gathered value belongs to this segment alone: others may read the same part as
                # it was made.
                value = f"{value}, for segment {segment.index}"
                gathers[value] = gather
            own[value] = part
        inputs.append(own)
        for name, region in segment.writes:
            if name in graph.outputs:
                outputs[segment.index][_PartInLayout(name, region, PLAIN)] = None
    modules = []
    for segment, own, results in zip(schedule.segments, inputs, outputs, strict=True):
        writer = ModuleWriter(graph, lowered[segment.place], unlowered)
        for value, part in own.items():
            writer.read(*part, value)
        for pieces in _runs(segment, graph):
            task = graph.task[pieces[0].task]
            if pieces[0] == graph.whole_piece(task):
                writer.add_whole([graph.task[piece.task] for piece in pieces], needed)
            else:
                writer.add(pieces[0])
        modules.append(writer.module(f"segment_{segment.index}", list(results)))
    return tuple(modules), gathers


def border_tensors(schedule: Schedule) -> set[str]:
    """The tensors that are read outside of the tasks that make them: by another segment, by a split
    task, which reads parts, and behind a split task. Engines need not make any other tensor."""
    graph = schedule.graph
    names = {name for segment in schedule.segments for name, _ in segment.reads}
    for segment in schedule.segments:
        for run in _runs(segment, graph):
            tasks = [graph.task[piece.task] for piece in run]
            own = {name for task in tasks for name in task.outputs}
            names.update(name for task in tasks for name in task.inputs if name not in own)
    return names


def changing_layout(graph: Graph, source: LoweredModel, target: LoweredModel) -> Set[str]:
    """The tensors that ``source`` may make and ``target`` may read, and that change their layout in
    between, however they are divided: see `_Handover`."""
    if source is target:
        return frozenset()
    read = dict.fromkeys(name for task in graph.tasks for name in task.inputs)
    made = (graph.tensors[name] for name in read if name in graph.producer)
    return frozenset(t.name for t in made if not t.opaque and _changes(t, source, target))


def leaving_blocks(
    graph: Graph, own: LoweredModel, other_models: Iterable[LoweredModel]
) -> Set[str]:
    """The tensors that an engine holds in blocks and cannot assemble in blocks with parts that one
    of ``other_models`` has made."""
    changing = {name for other in other_models for name in changing_layout(graph, other, own)}
    return frozenset(n for n in changing if own.tensor_layout(graph.tensors[n]).is_blocked)


def _changes(tensor: Tensor, source: LoweredModel, target: LoweredModel) -> bool:
    layout = source.tensor_layout(tensor)
    if layout != target.tensor_layout(tensor):
        return True
    exact = not layout.is_blocked or (
        source.has_no_padding(tensor) and target.has_no_padding(tensor)
    )
    return not exact or tensor.name in target.read_unblocked


def _runs(segment: Segment, graph: Graph) -> Iterable[list[Piece]]:
    """Consecutive whole pieces together; each piece of a split task alone."""
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
    part: _PartInLayout, supplies: Sequence[Supply], graph: Graph, lowered: LoweredModel
) -> Gather | None:
    """The boxes of an input; None if one segment makes exactly this part, or if it is an input of
    the model in the form that is fed."""
    name, region, layout = part
    tensor = graph.tensors[name]
    if not supplies:
        if region == tensor.whole:
            return None
        return Gather(PLAIN, (GatheredBox(name, region, region.relative_to(region)),))
    if as_made(supplies, region):
        return None
    whole = tensor.whole
    if layout.is_blocked:
        whole = whole.with_axis(1, 0, lowered.padded_channels(tensor))
    return Gather(
        layout,
        tuple(
            GatheredBox(
                part_name(name, s.made, layout, graph),
                _inside(s.box, s.made, tensor.whole, whole),
                _inside(s.box, region, tensor.whole, whole),
            )
            for s in supplies
        ),
    )


def _inside(box: Region, outer: Region, tensor: Region, padded: Region) -> Region:
    """``box`` in coordinates that start where ``outer`` starts, to the end of the last block."""
    inside = box.relative_to(outer)
    if tensor == padded or box.stop[1] < tensor.stop[1]:
        return inside
    return inside.with_axis(1, inside.start[1], inside.stop[1] + padded.stop[1] - tensor.stop[1])


class _Handover:
    """The layouts in which segments hand over tensors."""

    def __init__(self, schedule: Schedule, lowered: Mapping[Place, LoweredModel]) -> None:
        self._schedule, self._lowered = schedule, lowered

    def inputs(
        self, reader: Segment, needed: Collection[str]
    ) -> Iterable[tuple[_PartInLayout, Sequence[Supply]]]:
        """The parts that a segment reads from outside, with the segments that supply them."""
        uses = self._read_layouts(reader, needed)
        for name, region in reader.reads:
            supplies = self._schedule.supplies.get((reader.index, (name, region)), ())
            common = self._common_layout(reader, (name, region), supplies)
            # A tensor that the engine's nodes do not read is read by the model's own operators.
            used = uses.get(name, {common})
            unblocked = self._unblocked(reader, name, supplies)
            layouts = {common if layout == common else unblocked for layout in used}
            for layout in sorted(layouts, key=str):
                yield _PartInLayout(name, region, layout), supplies

    def _read_layouts(self, reader: Segment, needed: Collection[str]) -> dict[str, set[Layout]]:
        """For each tensor from outside: the layouts in which the engine reads it."""
        graph, lowered = self._schedule.graph, self._lowered[reader.place]
        layouts: dict[str, set[Layout]] = {}
        for pieces in _runs(reader, graph):
            own = {name for piece in pieces for name in graph.task[piece.task].outputs}
            outputs = [name for name in own if name in needed]
            read = {v for i in nodes_of(lowered, outputs, own) for v in reads(lowered.nodes[i])}
            read.update(lowered.value_of(name) for name in outputs)
            for value in read:
                tensor = lowered.tensor_of.get(value, value)
                if tensor in graph.tensors and tensor not in own:
                    layouts.setdefault(tensor, set()).add(
                        lowered.inner_layout(value, graph.tensors[tensor])
                    )
        return layouts

    def _common_layout(
        self, reader: Segment, part: TaskRegion, supplies: Sequence[Supply]
    ) -> Layout:
        """The layout that reader and makers have in common, if all boxes end where blocks end; else
        one without blocks."""
        name, region = part
        layout = self._layout_at(reader.place, name)
        unblocked = self._unblocked(reader, name, supplies)
        if not layout.is_reordered or not supplies:
            return unblocked
        segments, tensor = self._schedule.segments, self._schedule.graph.tensors[name]
        own = self._lowered[reader.place]
        places = {segments[s.segment].place for s in supplies}
        if any(self._layout_at(place, name) != layout for place in places):
            return unblocked
        boxes = [region, *(s.box for s in supplies), *(s.made for s in supplies)]
        if layout == NHWC:
            return NHWC if all(box == tensor.whole for box in boxes) else PLAIN
        aligned = all(layout.has_whole_blocks(box, tensor.shape) for box in boxes)
        return layout if aligned and self._same_padding(name, boxes, own, places) else unblocked

    def _same_padding(
        self, name: str, boxes: Iterable[Region], own: LoweredModel, places: Iterable[Place]
    ) -> bool:
        """Whether reader and makers have the same channels at the same positions of blocks.

        The channels that fill a block are sure to be alike only within one lowered model. Where
        that model has joined tensors, there are gaps between channels, and part of the channels is
        at other positions.
        """
        tensor = self._schedule.graph.tensors[name]
        models = [own, *(self._lowered[place] for place in places)]
        if all(model.has_no_padding(tensor) for model in models):
            return True
        channels = (0, tensor.shape[1])
        whole = all((box.start[1], box.stop[1]) == channels for box in boxes)
        alike = all(model is own for model in models)
        return alike and (whole or name not in own.channel_positions)

    def _unblocked(self, reader: Segment, name: str, supplies: Sequence[Supply]) -> Layout:
        """The model's layout of a tensor, but in float32 if reader and makers hold it in
        float32."""
        if not supplies:
            return PLAIN
        makers = (self._schedule.segments[s.segment] for s in supplies)
        layouts = {self._layout_at(s.place, name).unblocked for s in (reader, *makers)}
        return layouts.pop() if len(layouts) == 1 else PLAIN

    def _layout_at(self, place: Place, name: str) -> Layout:
        return self._lowered[place].tensor_layout(self._schedule.graph.tensors[name])
