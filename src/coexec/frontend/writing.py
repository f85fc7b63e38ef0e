"""Write one module of pieces: the nodes of a lowered model, whole or cut."""

from collections.abc import Collection, Mapping, Sequence

import onnx

from coexec.errors import PlanError
from coexec.frontend.body import Body
from coexec.frontend.cutting import Uncut, node_region, nodes_of
from coexec.frontend.dialect import LAST, Layout
from coexec.frontend.lowered import Lowered
from coexec.frontend.module import Module
from coexec.frontend.parts import Parts
from coexec.ir.graph import Graph, Piece, Task, Tensor, tensor_part
from coexec.ir.region import Region
from coexec.ir.rules import OperatorRegion

__all__ = ["Writer"]

_Values = Mapping[str, tuple[str, Region | None]]
"""By lowered value: what it is called in the module, and what was computed of it; None: all."""


class Writer:
    """One module, piece by piece."""

    def __init__(self, graph: Graph, low: Lowered, plain: Lowered) -> None:
        """
        Args:
            low: the model as the engine lowers it; split tasks are apart.
            plain: the model as it was given.
        """
        self._graph, self._low, self._plain = graph, low, plain
        self._body = Body(low, plain)
        self._parts = Parts(graph, low, self._body)
        self._inputs: list[Tensor] = []
        self._layouts: dict[str, Layout] = {}
        """Of inputs and outputs."""

    def read(self, tensor: str, region: Region, layout: Layout, value: str) -> None:
        """Take a part from outside, where it is called ``value``."""
        self._parts.keep(tensor, region, layout, value)
        self._inputs.append(self._parts.described(tensor, region, layout, value))
        self._layouts[value] = layout

    def add(self, piece: Piece) -> None:
        """Compute a part of a task from what is there.

        Raises:
            PlanError: it needs what is not there.
        """
        task = self._graph.task[piece.task]
        own = task.outputs[:1]
        self._try(own, frozenset(own), piece.region)

    def add_whole(self, tasks: Sequence[Task], wanted: Collection[str]) -> None:
        """Compute ``wanted``, which others need of the whole ``tasks``.

        Raises:
            PlanError: they need what is not there.
        """
        own = [name for task in tasks for name in task.outputs]
        self._try([name for name in own if name in wanted], frozenset(own), None)

    def _try(self, wanted: Sequence[str], own: frozenset[str], region: Region | None) -> None:
        """In the engine's own operators; else in the model's.

        Else: if a node cannot be cut, or if the engine's optimizer has made something depend on
        what no task of the plan reads.
        """
        length, state = self._body.length, self._parts.state()
        try:
            self._add(self._low, wanted, own, region)
        except (Uncut, PlanError):
            self._body.shorten(length)
            self._parts.restore(state)
            self._add(self._plain, wanted, own, region)

    def _add(
        self, low: Lowered, wanted: Sequence[str], own: frozenset[str], region: Region | None
    ) -> None:
        """``region``: of the only tensor that is wanted; None: all of all."""
        indices = nodes_of(low, wanted, own)
        cuts = {} if region is None else self._cuts(low, wanted[0], indices, region)
        values: dict[str, tuple[str, Region | None]] = {}
        for index in indices:
            self._write(low, low.nodes[index], cuts.get(index), values, region)
        for name in wanted:
            made = self._graph.tensors[name].whole if region is None else region
            native = low.native(name)
            if native not in values and region is not None:
                raise Uncut(f"{name} is computed no more")
            # It may be a weight, or something else that is there, if the engine has found that out.
            value = self._value(low, native, None, values)
            self._parts.keep(name, made, low.layout(native), value)
        if region is None:  # what the engine has of these in other layouts, too
            for value, (called, _) in values.items():
                name = low.stands_for.get(value, "")
                if name in own:
                    whole = self._graph.tensors[name].whole
                    self._parts.keep(name, whole, low.layout(value), called)

    def _cuts(
        self, low: Lowered, tensor: str, indices: Sequence[int], region: Region
    ) -> dict[int, OperatorRegion]:
        """By node, what it does for ``region`` of a tensor.

        Raises:
            Uncut: not known of one.
        """
        native = low.native(tensor)
        need = {native: self._inner(low, native, tensor, region)}
        cuts: dict[int, OperatorRegion] = {}
        for index in reversed(indices):
            node = low.nodes[index]
            wanted = need.get(node.output[0])
            if wanted is None or any(node.output[1:]):
                raise Uncut(node.op_type)
            cuts[index] = part = node_region(low, node, wanted)
            for name, read in zip(node.input, part.inputs, strict=True):
                if read is not None and name not in low.weights:
                    need[name] = read if name not in need else need[name].hull(read)
        return cuts

    def _write(
        self, low: Lowered, node: onnx.NodeProto, cut: OperatorRegion | None,
        values: dict[str, tuple[str, Region | None]], made: Region | None,
    ) -> None:  # fmt: skip
        """Add ``node``, all of it or cut.

        Args:
            values: those that were made so far, with their regions where they are cut.
            made: of the tensor that it works for; None: all.
        """
        taken: list[str] = []
        for position, name in enumerate(node.input):
            region = None if cut is None else cut.inputs[position]
            if cut is not None and position in cut.constants:
                taken.append(self._body.numbers(cut.constants[position]))
            elif not name or (cut is not None and region is None):
                taken.append("")
            elif region is None or region.size or _is_empty(low, name):
                taken.append(self._value(low, name, region, values))
        label = "" if cut is None else str(cut.computes)
        outputs = [self._body.name(f"{name}{label}") if name else "" for name in node.output]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:], copy.metadata_props[:]
        copy.input.extend(taken)
        copy.output.extend(outputs)
        if cut is None:
            self._rename_captured(low, copy, values)
        else:
            _change(copy, cut)
            copy.name = f"{node.name}{cut.output}" if node.name else ""
        for name, new in zip(node.output, outputs, strict=True):
            if name in low.tensors:
                shape = low.tensors[name].shape if cut is None else cut.computes.shape
                self._body.declare(new, shape, low.tensors[name])
        self._body.append(copy, self._part_of(low, node, made))
        for name, new in zip(node.output, outputs, strict=True):
            values[name] = (new, None if cut is None else cut.output)
        if cut is not None and cut.computes != cut.output:
            layout = low.layout(node.output[0])
            cropped = self._parts.cropped(outputs[0], cut.computes, cut.output, layout)
            values[node.output[0]] = (cropped, cut.output)

    def _value(self, low: Lowered, name: str, region: Region | None, values: _Values) -> str:
        """What a node reads as ``name``: a weight, a value of its task, or one that is there."""
        if name in low.weights:
            return self._body.weight(low, name, region)
        if name in values:
            made, have = values[name]
            if region is None or have is None or have == region:
                return made
            return self._parts.cropped(made, have, region, low.layout(name))
        tensor = low.stands_for.get(name, name)
        if tensor not in self._graph.tensors:
            raise Uncut(f"{name} is of no task")
        wanted = self._graph.tensors[tensor].whole
        if region is not None:
            wanted = _outer(region, wanted)
        return self._parts.get(tensor, wanted, low.layout(name))

    def _rename_captured(
        self, low: Lowered, node: onnx.NodeProto, values: _Values,
        own: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Of a node with bodies: what they read from outside is called otherwise here.

        ``own``: what the bodies around have made, which stays."""
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                inside = own.union(
                    (t.name for t in body.initializer), (v.name for v in body.input),
                    (name for inner in body.node for name in inner.output),
                )  # fmt: skip
                for inner in body.node:
                    for position, name in enumerate(inner.input):
                        if name and name not in inside:
                            inner.input[position] = self._value(low, name, None, values)
                    self._rename_captured(low, inner, values, inside)
                for output in body.output:
                    if output.name not in inside:
                        output.name = self._value(low, output.name, None, values)

    def _inner(self, low: Lowered, value: str, tensor: str, region: Region) -> Region:
        """A region of ``tensor`` in the lowered ``value``, which may have more channels."""
        shape, whole = low.tensors[value].shape, self._graph.tensors[tensor].shape
        if low.layout(value) == LAST:
            raise Uncut(f"{tensor} has its channels last")
        if shape == whole:
            return region
        if len(shape) != len(whole) or region.start[1] or region.stop[1] != whole[1]:
            raise Uncut(f"{tensor}{region} is cut in its channels, which are filled up")
        return region.with_axis(1, 0, shape[1])

    def _part_of(self, low: Lowered, node: onnx.NodeProto, region: Region | None) -> str:
        """The part of a tensor that a node computes; "" if nobody else knows its result."""
        tensor = next((t for n in node.output if (t := low.stands_for.get(n))), "")
        if not tensor:
            return ""
        whole = self._graph.tensors[tensor].whole
        return tensor_part(tensor, whole if region is None else region, self._graph)

    def module(self, title: str, outputs: Sequence[tuple[str, Region, Layout]]) -> Module:
        """What was added, as a model that yields ``outputs``: tensor, region and layout of each."""
        names: set[str] = {tensor.name for tensor in self._inputs}
        results = []
        for part in outputs:
            name = self._parts.published(*part, others=names)
            names.add(name)
            results.append(self._parts.described(*part, name))
            self._layouts[name] = part[2]
        return self._body.module(title, self._inputs, results, self._layouts)


def _is_empty(low: Lowered, name: str) -> bool:
    """Whether a value has no elements at all, such as the region of a Resize that has none."""
    weight, tensor = low.weights.get(name), low.tensors.get(name)
    return weight.size == 0 if weight is not None else tensor is not None and 0 in tensor.shape


def _change(node: onnx.NodeProto, cut: OperatorRegion) -> None:
    """Give ``node`` the attributes that its part of the work has."""
    kept = [a for a in node.attribute if a.name not in cut.attributes]
    changed = [
        onnx.helper.make_attribute(key, value)
        for key, value in cut.attributes.items()
        if value is not None
    ]
    del node.attribute[:]
    node.attribute.extend([*kept, *changed])


def _outer(region: Region, whole: Region) -> Region:
    """A region of a lowered tensor in the model's, which may have fewer channels."""
    start = tuple(min(a, b) for a, b in zip(region.start, whole.stop, strict=True))
    stop = tuple(min(a, b) for a, b in zip(region.stop, whole.stop, strict=True))
    return Region(start, stop)
