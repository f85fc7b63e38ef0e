"""Writes one module of pieces: the nodes of a lowered model, whole or cut."""

from collections.abc import Collection, Mapping, Sequence

import onnx

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Piece, Task, Tensor, tensor_part
from coexec.graph.region import Region
from coexec.graph.rules import OperatorRegion
from coexec.lowering.cutting import Uncut, node_region, nodes_of
from coexec.lowering.layout import Layout
from coexec.lowering.lowered import Lowered
from coexec.lowering.module import Module
from coexec.lowering.module_builder import Body
from coexec.lowering.tensor_parts import TensorParts

__all__ = ["Writer"]

_Values = Mapping[str, tuple[str, Region | None]]
"""By lowered value: its name in the module, and its computed region; None: all."""


class Writer:
    """One module, written piece by piece."""

    def __init__(self, graph: Graph, low: Lowered, plain: Lowered) -> None:
        """
        Args:
            low: the model as the engine lowers it; split tasks are apart.
            plain: the model as it was given.
        """
        self._graph, self._low, self._plain = graph, low, plain
        self._body = Body(low, plain)
        self._parts = TensorParts(graph, low, self._body)
        self._inputs: list[Tensor] = []
        self._layouts: dict[str, Layout] = {}
        """Layouts of inputs and outputs, by name."""

    def read(self, tensor: str, region: Region, layout: Layout, value: str) -> None:
        """Add an input: a part that comes from outside with the name ``value``."""
        self._parts.keep(tensor, region, layout, value)
        self._inputs.append(self._parts.described(tensor, region, layout, value))
        self._layouts[value] = layout

    def add(self, piece: Piece) -> None:
        """Compute a part of a task from the parts that are there.

        Raises:
            PlanError: a part that it needs is missing.
        """
        task = self._graph.task[piece.task]
        own = task.outputs[:1]
        self._try(own, frozenset(own), piece.region)

    def add_whole(self, tasks: Sequence[Task], wanted: Collection[str]) -> None:
        """Compute ``wanted``, those outputs of the whole ``tasks`` that others need.

        Raises:
            PlanError: a part that they need is missing.
        """
        own = [name for task in tasks for name in task.outputs]
        self._try([name for name in own if name in wanted], frozenset(own), None)

    def _try(self, wanted: Sequence[str], own: frozenset[str], region: Region | None) -> None:
        """Write in the engine's own operators; otherwise in the model's.

        Otherwise: if a node cannot be cut, or if the engine's optimizer has made a node depend on a
        tensor that no task of the plan reads.
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
        """Add the nodes of ``wanted``. ``region``: of the only tensor in ``wanted``; None: all of
        all."""
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
            # The engine may have replaced it by a weight, or by another value that is there.
            value = self._value(low, native, None, values)
            self._parts.keep(name, made, low.layout(native), value)
        if region is None:  # also the tensors that the engine holds in other layouts
            for value, (label, _) in values.items():
                name = low.stands_for.get(value, "")
                if name in own:
                    whole = self._graph.tensors[name].whole
                    self._parts.keep(name, whole, low.layout(value), label)

    def _cuts(
        self, low: Lowered, tensor: str, indices: Sequence[int], region: Region
    ) -> dict[int, OperatorRegion]:
        """The region of each node for ``region`` of a tensor.

        Raises:
            Uncut: there is no rule for a node.
        """
        native = low.native(tensor)
        need = {native: self._inner(low, native, tensor, region)}
        cuts: dict[int, OperatorRegion] = {}
        for index in reversed(indices):
            node = low.nodes[index]
            output_region = need.get(node.output[0])
            if output_region is None or any(node.output[1:]):
                raise Uncut(node.op_type)
            cuts[index] = part = node_region(low, node, output_region)
            for name, read in zip(node.input, part.inputs, strict=True):
                if read is not None and name not in low.weights:
                    need[name] = read if name not in need else need[name].hull(read)
        return cuts

    def _write(
        self,
        low: Lowered,
        node: onnx.NodeProto,
        cut: OperatorRegion | None,
        values: dict[str, tuple[str, Region | None]],
        made: Region | None,
    ) -> None:
        """Add ``node``, all of it or cut.

        Args:
            values: the values made so far, with their regions where they are cut.
            made: the region of the tensor that the node works for; None: all.
        """
        inputs: list[str] = []
        for position, name in enumerate(node.input):
            region = None if cut is None else cut.inputs[position]
            if cut is not None and position in cut.constants:
                inputs.append(self._body.numbers(cut.constants[position]))
            elif not name or (cut is not None and region is None):
                inputs.append("")
            elif region is None or region.size or _is_empty(low, name):
                inputs.append(self._value(low, name, region, values))
        label = "" if cut is None else str(cut.computes)
        outputs = [self._body.name(f"{name}{label}") if name else "" for name in node.output]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:], copy.metadata_props[:]
        copy.input.extend(inputs)
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
        """The value that a node reads as ``name``: a weight, a value of its task, or an existing
        part."""
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
        part_region = self._graph.tensors[tensor].whole
        if region is not None:
            part_region = _outer(region, part_region)
        return self._parts.get(tensor, part_region, low.layout(name))

    def _rename_captured(
        self,
        low: Lowered,
        node: onnx.NodeProto,
        values: _Values,
        own: frozenset[str] = frozenset(),
    ) -> None:
        """Rename the outer values that the bodies of a node read.

        ``own``: values that the surrounding bodies have made, which keep their names.
        """
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                inside = own.union(
                    (t.name for t in body.initializer),
                    (v.name for v in body.input),
                    (name for inner in body.node for name in inner.output),
                )
                for inner in body.node:
                    for position, name in enumerate(inner.input):
                        if name and name not in inside:
                            inner.input[position] = self._value(low, name, None, values)
                    self._rename_captured(low, inner, values, inside)
                for output in body.output:
                    if output.name not in inside:
                        output.name = self._value(low, output.name, None, values)

    def _inner(self, low: Lowered, value: str, tensor: str, region: Region) -> Region:
        """The region of ``tensor`` in the lowered ``value``, which may have more channels."""
        shape, whole = low.tensors[value].shape, self._graph.tensors[tensor].shape
        if low.layout(value).order == "NHWC":
            raise Uncut(f"{tensor} is in NHWC")
        if shape == whole:
            return region
        if len(shape) != len(whole) or region.start[1] or region.stop[1] != whole[1]:
            raise Uncut(f"{tensor}{region} is cut in its channels, which are filled up")
        return region.with_axis(1, 0, shape[1])

    def _part_of(self, low: Lowered, node: onnx.NodeProto, region: Region | None) -> str:
        """The part of a tensor that a node computes; "" if its result is no tensor of the graph."""
        tensor = next((t for n in node.output if (t := low.stands_for.get(n))), "")
        if not tensor:
            return ""
        whole = self._graph.tensors[tensor].whole
        return tensor_part(tensor, whole if region is None else region, self._graph)

    def module(self, title: str, outputs: Sequence[tuple[str, Region, Layout]]) -> Module:
        """The added nodes as a model that yields ``outputs``: tensor, region and layout of each."""
        names: set[str] = {tensor.name for tensor in self._inputs}
        results = []
        for part in outputs:
            name = self._parts.published(*part, others=names)
            names.add(name)
            results.append(self._parts.described(*part, name))
            self._layouts[name] = part[2]
        return self._body.module(title, self._inputs, results, self._layouts)


def _is_empty(low: Lowered, name: str) -> bool:
    """Whether a value has no elements at all, such as an empty roi input of a Resize."""
    weight, tensor = low.weights.get(name), low.tensors.get(name)
    return weight.size == 0 if weight is not None else tensor is not None and 0 in tensor.shape


def _change(node: onnx.NodeProto, cut: OperatorRegion) -> None:
    """Give ``node`` the attributes of its cut."""
    kept = [a for a in node.attribute if a.name not in cut.attributes]
    changed = [
        onnx.helper.make_attribute(key, value)
        for key, value in cut.attributes.items()
        if value is not None
    ]
    del node.attribute[:]
    node.attribute.extend([*kept, *changed])


def _outer(region: Region, whole: Region) -> Region:
    """A region of a lowered tensor in the model's tensor, which may have fewer channels."""
    start = tuple(min(a, b) for a, b in zip(region.start, whole.stop, strict=True))
    stop = tuple(min(a, b) for a, b in zip(region.stop, whole.stop, strict=True))
    return Region(start, stop)
