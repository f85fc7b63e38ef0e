"""The nodes, values and weights of one module while it is written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from coexec.arrays import Array, numpy_type
from coexec.graph.graph import Tensor
from coexec.graph.region import Region
from coexec.lowering.layout import PLAIN, Layout
from coexec.lowering.lowered_model import (
    LoweredModel,
    captured,
    kind_of,
    placeholder,
    reads,
)
from coexec.lowering.module import Module
from coexec.model.stored import Stored, is_large
from coexec.model.tensors import value_info

_BOUNDS_AS_INPUTS = 10
_PADS_AS_INPUTS = 11
"""Versions of the operator set from which Slice and Pad take numbers as inputs."""


class _Weight(NamedTuple):
    tensor: ir.TensorProtocol
    part: Array | None
    """The part that is read; None: all of the tensor."""
    offset: int
    """Where the part begins in the tensor, in bytes; -1 if it had to be copied."""


class ModuleBuilder:
    """Nodes in the order in which they were added; each value has a name of its own."""

    def __init__(self, lowered: LoweredModel, unlowered: LoweredModel) -> None:
        """
        Args:
            lowered: the model as the engine lowers it.
            unlowered: the model as it was given.
        """
        self._lowered, self._unlowered = lowered, unlowered
        self._nodes: list[onnx.NodeProto] = []
        self._parts: list[str] = []
        """For each node, the part of a tensor that it computes; "" for a step on the way to a
        part."""
        self._tensors: dict[str, Tensor] = {}
        self._weights: dict[str, _Weight] = {}
        self._value_names: dict[str, int] = {}
        """Number of values by name; see `_unused_name`."""
        self._node_names: dict[str, int] = {}
        """Number of nodes by name."""
        opsets = {o.domain: o.version for o in unlowered.header.opset_import}
        self._opset = opsets.get("", _PADS_AS_INPUTS)

    # Values

    def tensor(self, value: str) -> Tensor:
        """Type and shape of a value."""
        return self._tensors[value]

    def declare(self, value: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Declare a value with a shape, and with the type of another tensor."""
        self._value_names.setdefault(value, 1)
        tensor = Tensor(value, tuple(shape), like.dtype, opaque=like.opaque)
        self._tensors[value] = tensor
        return tensor

    def unused_name(self, base: str) -> str:
        """A name that no other value has: ``base``, if it is free."""
        return _unused_name(base, self._value_names)

    # Nodes

    @property
    def length(self) -> int:
        """How many nodes there are."""
        return len(self._nodes)

    def shorten(self, length: int) -> None:
        """Remove the last nodes until ``length`` nodes are left."""
        del self._nodes[length:], self._parts[length:]

    def append(self, node: onnx.NodeProto, part: str = "") -> None:
        """Add a node; ``part`` is the part of a tensor of the model that it computes.

        The node may get another name, because names of nodes must differ.
        """
        if node.name:
            node.name = _unused_name(node.name, self._node_names)
        self._nodes.append(node)
        self._parts.append(part)

    def add(
        self, op_type: str, value: str, shape: Sequence[int], domain: str = "", **attributes: int
    ) -> str:
        """Add a node that makes a value of ``shape`` from another one; returns its name."""
        output = self.unused_name(value)
        self.declare(output, shape, self._tensors[value])
        node = onnx.helper.make_node(op_type, [value], [output], domain=domain)
        node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in attributes.items())
        self.append(node)
        return output

    def cast(self, value: str, dtype: str) -> str:
        """``value`` in another type."""
        tensor = self._tensors[value]
        kind = ir.DataType.from_numpy(numpy_type(dtype))
        output = self.add("Cast", value, tensor.shape, to=int(kind))
        self.declare(output, tensor.shape, replace(tensor, dtype=dtype))
        return output

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """The axes of ``value`` in another order."""
        shape = self._tensors[value].shape
        output = self.add("Transpose", value, [shape[axis] for axis in order])
        self._nodes[-1].attribute.append(onnx.helper.make_attribute("perm", list(order)))
        return output

    def concat(self, values: Sequence[str], axis: int) -> str:
        """The concatenation of values along an axis."""
        shape = list(self._tensors[values[0]].shape)
        shape[axis] = sum(self._tensors[value].shape[axis] for value in values)
        output = self.add("Concat", values[0], shape, axis=axis)
        self._nodes[-1].input.extend(values[1:])
        return output

    def gather(self, value: str, channels: Sequence[int]) -> str:
        """These channels of ``value``, in this order."""
        batch, _, *spatial = self._tensors[value].shape
        index = self.integers(channels)
        output = self.add("Gather", value, (batch, len(channels), *spatial), axis=1)
        self._nodes[-1].input.append(index)
        return output

    def slice(self, value: str, bounds: Sequence[tuple[int, int, int]]) -> str:
        """A box of ``value``; ``bounds`` are (axis, start, stop) for the axes that are cut."""
        shape = list(self._tensors[value].shape)
        for axis, start, stop in bounds:
            shape[axis] = stop - start
        axes, starts, ends = (list(numbers) for numbers in zip(*bounds, strict=True))
        output = self.add("Slice", value, shape)
        self._set_numbers("starts", starts, _BOUNDS_AS_INPUTS)
        self._set_numbers("ends", ends, _BOUNDS_AS_INPUTS)
        self._set_numbers("axes", axes, _BOUNDS_AS_INPUTS)
        return output

    def pad(self, value: str, channels: int) -> str:
        """``value`` with channels of zeros appended, so that it has ``channels`` of them."""
        shape = list(self._tensors[value].shape)
        if shape[1] == channels:
            return value
        pads = [0] * (2 * len(shape))
        pads[len(shape) + 1] = channels - shape[1]
        shape[1] = channels
        output = self.add("Pad", value, shape)
        self._set_numbers("pads", pads, _PADS_AS_INPUTS)
        return output

    def _set_numbers(self, key: str, numbers: Sequence[int], opset: int) -> None:
        """Give numbers to the last node: as an input from ``opset`` on, as an attribute before."""
        if self._opset >= opset:
            self._nodes[-1].input.append(self.integers(numbers))
        else:
            self._nodes[-1].attribute.append(onnx.helper.make_attribute(key, list(numbers)))

    def rename(self, old: str, new: str) -> bool:
        """Rename a value; False if no node makes it."""
        if not any(old in node.output for node in self._nodes):
            return False
        for node in self._nodes:
            _rename(node, old, new)
        self.declare(new, self._tensors[old].shape, self._tensors[old])
        return True

    # Weights

    def integers(self, values: Iterable[int]) -> str:
        """A new vector of int64."""
        name = self.unused_name("numbers")
        tensor = ir.Tensor(np.array([*values], np.int64), name=name)
        self._weights[name] = _Weight(tensor, None, 0)
        return name

    def weight(self, lowered: LoweredModel, name: str, region: Region | None) -> str:
        """A weight of a lowered model, or a part of it; the part is a view if it is contiguous."""
        tensor = lowered.weights[name]
        label = name if lowered is self._lowered else f"{name} as given"
        if region is None or region.covers(tuple(tensor.shape.numpy())):
            self._weights[label] = _Weight(tensor, None, 0)
            return label
        label = f"{label}{region}"
        if label not in self._weights:
            array = tensor.numpy()
            part = array[region.slices]
            offset = part.__array_interface__["data"][0] - array.__array_interface__["data"][0]
            if not part.flags.c_contiguous:
                part, offset = np.ascontiguousarray(part), -1
            self._weights[label] = _Weight(tensor, part, offset)
        return label

    # The module

    def module(
        self,
        title: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        layouts: Mapping[str, Layout],
    ) -> Module:
        """The added nodes as a module. ``layouts``: layouts of inputs and outputs by name."""
        results = {tensor.name for tensor in outputs}
        nodes, parts = self._needed_nodes(results)
        model = onnx.ModelProto()
        model.CopyFrom(self._lowered.header)
        domains = {o.domain for o in model.opset_import}
        header = self._unlowered.header
        model.opset_import.extend(o for o in header.opset_import if o.domain not in domains)
        if not model.functions:
            model.functions.extend(header.functions)
        model.graph.name = title
        model.graph.node.extend(nodes)
        read = results.union(name for node in nodes for name in reads(node))
        used = tuple(tensor for tensor in inputs if tensor.name in read)
        model.graph.input.extend(value_info(tensor) for tensor in used)
        model.graph.output.extend(value_info(tensor) for tensor in outputs)
        if self._lowered.annotated:
            made = dict.fromkeys(n for node in nodes for n in node.output if n not in results)
            inner_tensors = (self._tensors[name] for name in made if name in self._tensors)
            model.graph.value_info.extend(value_info(t) for t in inner_tensors if not t.opaque)
        external, stored = self._initializers(model, read)
        dialect = self._lowered.dialect
        computing = [
            (node, part)
            for node, part in zip(nodes, parts, strict=True)
            if not dialect.is_free((node.domain, node.op_type))
        ]
        return Module(
            model.SerializeToString(),
            external,
            used,
            tuple(outputs),
            tuple(kind_of(node) for node, _ in computing),
            tuple(part for _, part in computing),
            {t.name: layouts[t.name] for t in (*used, *outputs) if layouts[t.name] != PLAIN},
            stored,
        )

    def _needed_nodes(self, value_names: set[str]) -> tuple[list[onnx.NodeProto], list[str]]:
        """The nodes that the values need, with the part that each works for: its own part, or the
        part of a node that reads it."""
        kept: list[tuple[onnx.NodeProto, str]] = []
        works_for: dict[str, str] = {}
        for node, part in zip(reversed(self._nodes), reversed(self._parts), strict=True):
            if value_names.isdisjoint(node.output):
                continue
            readers = (works_for[name] for name in node.output if name in works_for)
            part = part or next(readers, node.output[0])
            kept.append((node, part))
            value_names = value_names.union(reads(node))
            works_for.update(dict.fromkeys(reads(node), part))
        return [node for node, _ in reversed(kept)], [part for _, part in reversed(kept)]

    def _initializers(
        self, model: onnx.ModelProto, read: set[str]
    ) -> tuple[dict[str, Array], dict[str, tuple[str, int]]]:
        """Write the weights that are read into ``model``, the large ones as placeholders."""
        external: dict[str, Array] = {}
        stored: dict[str, tuple[str, int]] = {}
        for name, (tensor, part, offset) in self._weights.items():
            if name not in read:
                continue
            own = tensor if part is None else ir.Tensor(part, dtype=tensor.dtype, name=name)
            if not is_large(own):  # engines read the values of small ones, also of small parts
                proto = ir.serde.serialize_tensor(own)
                proto.name = name
                model.graph.initializer.append(proto)
                continue
            external[name] = array = tensor.numpy() if part is None else part
            if isinstance(tensor, Stored) and offset >= 0:
                stored[name] = (tensor.stored_as, offset)
            model.graph.initializer.append(placeholder(name, tensor.dtype, array))
        return external, stored


def _unused_name(base: str, taken: dict[str, int]) -> str:
    """``base``, or a similar name that is not taken. The name is then taken.

    ``taken``: number of names like this one, by name.
    """
    name = base
    while name in taken:
        taken[base] += 1
        name = f"{base} #{taken[base]}"
    taken[name] = 1
    return name


def _rename(node: onnx.NodeProto, old: str, new: str) -> None:
    """Rename a value in a node and in its bodies, which may read it."""
    for names in (node.input, node.output):
        names[:] = [new if name == old else name for name in names]
    for name, rename in captured(node):
        if name == old:
            rename(new)
