"""Writes one module of pieces: the nodes of a lowered model, whole or cut."""

from collections.abc import Collection, Mapping, Sequence

import onnx

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Piece, Task, Tensor, tensor_part
from coexec.graph.region import Region
from coexec.graph.rules import OperatorRegion
from coexec.lowering.cutting import CutError, node_region, nodes_of
from coexec.lowering.layout import Layout
from coexec.lowering.lowered_model import LoweredModel, captured
from coexec.lowering.module import Module
from coexec.lowering.module_builder import ModuleBuilder
from coexec.lowering.tensor_parts import TensorParts

_Values = Mapping[str, tuple[str, Region | None]]
"""By lowered value: its name in the module, and its computed region; None: all."""


class ModuleWriter:
    """One module, written piece by piece."""

    def __init__(self, graph: Graph, lowered: LoweredModel, unlowered: LoweredModel) -> None:
        """
        Args:
            lowered: the model as the engine lowers it; split tasks are apart.
            unlowered: the model as it was given.
        """
        self._graph, self._lowered, self._unlowered = graph, lowered, unlowered
        self._builder = ModuleBuilder(lowered, unlowered)
        self._parts = TensorParts(graph, lowered, self._builder)
        self._inputs: list[Tensor] = []
        self._layouts: dict[str, Layout] = {}
        """Layouts of inputs and outputs, by name."""

    def read(self, tensor: str, region: Region, layout: Layout, value: str) -> None:
        """Add an input: a part that comes from outside with the name ``value``."""
        self._parts.add(tensor, region, layout, value)
        self._inputs.append(self._parts.declare(tensor, region, layout, value))
        self._layouts[value] = layout

    def add(self, piece: Piece) -> None:
        """Compute a part of a task from the parts that are there.

        Raises:
            PlanError: a part that it needs is missing.
        """
        task = self._graph.task[piece.task]
        own = task.outputs[:1]
        self._try(own, frozenset(own), piece.region)

    def add_whole(self, tasks: Sequence[Task], outputs: Collection[str]) -> None:
        """Compute ``outputs``, those outputs of the whole ``tasks`` that others need.

        Raises:
            PlanError: a part that they need is missing.
        """
        own = [name for task in tasks for name in task.outputs]
        self._try([name for name in own if name in outputs], frozenset(own), None)

    def _try(self, outputs: Sequence[str], own: frozenset[str], region: Region | None) -> None:
        """Write in the engine's own operators, or else in the model's.

        The model's serve if a node cannot be cut, or if the engine's optimizer has made a node
        depend on a tensor that no task of the plan reads.
        """
        length, state = self._builder.length, self._parts.state()
        try:
            self._add(self._lowered, outputs, own, region)
        except (CutError, PlanError):
            self._builder.shorten(length)
            self._parts.restore(state)
            self._add(self._unlowered, outputs, own, region)

    def _add(
        self,
        lowered: LoweredModel,
        outputs: Sequence[str],
        own: frozenset[str],
        region: Region | None,
    ) -> None:
        """Add the nodes of ``outputs``. ``region``: of the only tensor in ``outputs``; None: all of
        all."""
        indices = nodes_of(lowered, outputs, own)
        cuts = {} if region is None else self._cuts(lowered, outputs[0], indices, region)
        values: dict[str, tuple[str, Region | None]] = {}
        for index in indices:
            self._write_node(lowered, lowered.nodes[index], cuts.get(index), values, region)
        for name in outputs:
            made = self._graph.tensors[name].whole if region is None else region
            value = lowered.value_of(name)
            if value not in values and region is not None:
                raise CutError(f"{name} is computed no more")
            # The engine may have replaced it by a weight, or by another value that is there.
            label = self._value(lowered, value, None, values)
            self._parts.add(name, made, lowered.layout_of(value), label)
        if region is None:  # also the tensors that the engine holds in other layouts
            for value, (label, _) in values.items():
                name = lowered.tensor_of.get(value, "")
                if name in own:
                    whole = self._graph.tensors[name].whole
                    self._parts.add(name, whole, lowered.layout_of(value), label)

    def _cuts(
        self, lowered: LoweredModel, tensor: str, indices: Sequence[int], region: Region
    ) -> dict[int, OperatorRegion]:
        """The region of each node for ``region`` of a tensor.

        Raises:
            CutError: there is no rule for a node.
        """
        value = lowered.value_of(tensor)
        need = {value: self._region_in(lowered, value, tensor, region)}
        cuts: dict[int, OperatorRegion] = {}
        for index in reversed(indices):
            node = lowered.nodes[index]
            output_region = need.get(node.output[0])
            if output_region is None or any(node.output[1:]):
                raise CutError(node.op_type)
            cuts[index] = part = node_region(lowered, node, output_region)
            for name, read in zip(node.input, part.inputs, strict=True):
                if read is not None and name not in lowered.weights:
                    need[name] = read if name not in need else need[name].hull(read)
        return cuts

    def _write_node(
        self,
        lowered: LoweredModel,
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
                inputs.append(self._builder.integers(cut.constants[position]))
            elif not name or (cut is not None and region is None):
                inputs.append("")
            elif region is None or region.size or _is_empty(lowered, name):
                inputs.append(self._value(lowered, name, region, values))
        label = "" if cut is None else str(cut.computes)
        outputs = [
            self._builder.unused_name(f"{name}{label}") if name else "" for name in node.output
        ]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:], copy.metadata_props[:]
        copy.input.extend(inputs)
        copy.output.extend(outputs)
        if cut is None:
            for name, rename in captured(copy):
                rename(self._value(lowered, name, None, values))
        else:
            _set_attributes(copy, cut)
            copy.name = f"{node.name}{cut.output}" if node.name else ""
        for name, new in zip(node.output, outputs, strict=True):
            if name in lowered.tensors:
                shape = lowered.tensors[name].shape if cut is None else cut.computes.shape
                self._builder.declare(new, shape, lowered.tensors[name])
        self._builder.append(copy, self._part_name(lowered, node, made))
        for name, new in zip(node.output, outputs, strict=True):
            values[name] = (new, None if cut is None else cut.output)
        if cut is not None and cut.computes != cut.output:
            layout = lowered.layout_of(node.output[0])
            cropped = self._parts.crop(outputs[0], cut.computes, cut.output, layout)
            values[node.output[0]] = (cropped, cut.output)

    def _value(
        self, lowered: LoweredModel, name: str, region: Region | None, values: _Values
    ) -> str:
        """The value that a node reads as ``name``: a weight, a value of its task, or an existing
        part."""
        if name in lowered.weights:
            return self._builder.weight(lowered, name, region)
        if name in values:
            made, have = values[name]
            if region is None or have is None or have == region:
                return made
            return self._parts.crop(made, have, region, lowered.layout_of(name))
        tensor = lowered.tensor_of.get(name, name)
        if tensor not in self._graph.tensors:
            raise CutError(f"{name} is of no task")
        part_region = self._graph.tensors[tensor].whole
        if region is not None:
            part_region = _region_of_tensor(region, part_region)
        return self._parts.get(tensor, part_region, lowered.layout_of(name))

    def _region_in(self, lowered: LoweredModel, value: str, tensor: str, region: Region) -> Region:
        """The region of ``tensor`` in the lowered ``value``, which may have more channels."""
        shape, whole = lowered.tensors[value].shape, self._graph.tensors[tensor].shape
        if lowered.layout_of(value).order == "NHWC":
            raise CutError(f"{tensor} is in NHWC")
        if shape == whole:
            return region
        if len(shape) != len(whole) or region.start[1] or region.stop[1] != whole[1]:
            raise CutError(f"{tensor}{region} is cut in its channels, which are padded")
        return region.with_axis(1, 0, shape[1])

    def _part_name(self, lowered: LoweredModel, node: onnx.NodeProto, region: Region | None) -> str:
        """The part of a tensor that a node computes; "" if its result is no tensor of the graph."""
        tensor = next((t for n in node.output if (t := lowered.tensor_of.get(n))), "")
        if not tensor:
            return ""
        whole = self._graph.tensors[tensor].whole
        return tensor_part(tensor, whole if region is None else region, self._graph)

    def module(self, title: str, outputs: Sequence[tuple[str, Region, Layout]]) -> Module:
        """The added nodes as a model that yields ``outputs``: tensor, region and layout of each."""
        names: set[str] = {tensor.name for tensor in self._inputs}
        results = []
        for part in outputs:
            name = self._parts.publish(*part, used=names)
            names.add(name)
            results.append(self._parts.declare(*part, name))
            self._layouts[name] = part[2]
        return self._builder.module(title, self._inputs, results, self._layouts)


def _is_empty(lowered: LoweredModel, name: str) -> bool:
    """Whether a value has no elements at all, such as an empty roi input of a Resize."""
    weight, tensor = lowered.weights.get(name), lowered.tensors.get(name)
    return weight.size == 0 if weight is not None else tensor is not None and 0 in tensor.shape


def _set_attributes(node: onnx.NodeProto, cut: OperatorRegion) -> None:
    """Give ``node`` the attributes of its cut."""
    kept = [a for a in node.attribute if a.name not in cut.attributes]
    changed = [
        onnx.helper.make_attribute(key, value)
        for key, value in cut.attributes.items()
        if value is not None
    ]
    del node.attribute[:]
    node.attribute.extend([*kept, *changed])


def _region_of_tensor(region: Region, whole: Region) -> Region:
    """A region of a lowered tensor in the model's tensor, which may have fewer channels."""
    start = tuple(min(a, b) for a, b in zip(region.start, whole.stop, strict=True))
    stop = tuple(min(a, b) for a, b in zip(region.stop, whole.stop, strict=True))
    return Region(start, stop)
