"""The parts of tensors inside a segment: named, cut out of each other and joined."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from coexec.errors import PlanError
from coexec.frontend.model import Model
from coexec.ir.graph import Graph
from coexec.ir.region import Region
from coexec.ir.stitch import Joined, Taken, assemble

__all__ = ["Parts", "tensor_part"]

_SLICE_BY_INPUTS = 10
"""The opset from which Slice takes its bounds as inputs."""


def tensor_part(name: str, region: Region, graph: Graph) -> str:
    """What inputs and outputs of an extracted model are called: the tensor's name if whole."""
    return name if region.covers(graph.tensors[name].shape) else f"{name}{region}"


class Parts:
    """What of the model's tensors a segment has so far, with the nodes and constants it took.

    A tensor is there in parts, each a value of the segment's own; other parts of it are made of
    these on demand, once.
    """

    def __init__(self, model: Model) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {}
        self._source = model.values
        self._graph = model.graph
        self._parts: dict[str, dict[Region, ir.Value]] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._opset = model.source.graph.opset_imports.get("", _SLICE_BY_INPUTS)

    def has(self, name: str) -> Mapping[Region, ir.Value]:
        """The parts of a tensor that are there."""
        return self._parts.get(name, {})

    def get(self, name: str, region: Region) -> ir.Value:
        """The value of a part of a tensor, cut and joined from what is there if need be."""
        if self._graph.tensors[name].constant:
            return self._weight(name, region)
        parts = self.has(name)
        plan = assemble(region, parts) if region.size else None
        if plan is None:
            there = ", ".join(map(str, parts)) or "nothing"
            raise PlanError(
                f"the segment needs {tensor_part(name, region, self._graph)} of "
                f"{self._graph.tensors[name].whole}, and has {there} of that tensor; add the "
                f"missing parts to its inputs or pieces"
            )
        return self._emit(name, plan)

    def keep(self, name: str, region: Region, value: ir.Value) -> ir.Value:
        """Note that ``value`` is this part of the tensor."""
        self._parts.setdefault(name, {})[region] = value
        return value

    def value(self, name: str, region: Region, label: str = "") -> ir.Value:
        """A new value that nothing computes yet, of the region's shape and the tensor's type."""
        source = self._source[name]
        opaque = self._graph.tensors[name].opaque
        return ir.Value(
            name=label or tensor_part(name, region, self._graph),
            shape=source.shape if opaque else ir.Shape(region.shape),
            type=source.type,
            metadata_props=dict(source.metadata_props),
        )

    def crop(self, outer: ir.Value, have: Region, value: ir.Value, want: Region) -> ir.Value:
        """Compute ``value``, which is the region ``want``, from ``outer``, the region ``have``."""
        inside = want.relative_to(have)
        axes = [i for i, (a, b) in enumerate(zip(have.shape, want.shape, strict=True)) if a != b]
        bounds = {
            "starts": [inside.start[i] for i in axes],
            "ends": [inside.stop[i] for i in axes],
            "axes": axes,
        }
        reads, attributes = [outer], list[ir.Attr]()
        if self._opset < _SLICE_BY_INPUTS:
            attributes = [ir.AttrInt64s(key, numbers) for key, numbers in bounds.items()]
        else:
            reads += [self.constant(f"{value.name} {k}", n) for k, n in bounds.items()]
        label = f"cut {value.name}"
        self.nodes.append(ir.Node("", "Slice", reads, attributes, outputs=[value], name=label))
        return value

    def constant(self, label: str, values: Iterable[int]) -> ir.Value:
        """A new int64 vector."""
        return self._add_constant(label, ir.Tensor(np.array([*values], np.int64), name=label))

    def _emit(self, name: str, plan: Taken | Joined) -> ir.Value:
        there = self._parts[name].get(plan.region)
        if there is not None:
            return there
        value = self.value(name, plan.region)
        if isinstance(plan, Taken):
            self.crop(self._parts[name][plan.source], plan.source, value, plan.region)
        else:
            reads = [self._emit(name, member) for member in plan.members]
            axis = [ir.AttrInt64("axis", plan.axis)]
            label = f"join {value.name}"
            self.nodes.append(ir.Node("", "Concat", reads, axis, outputs=[value], name=label))
        return self.keep(name, plan.region, value)

    def _weight(self, name: str, region: Region) -> ir.Value:
        """The source's tensor if it is whole, a view of it if not."""
        label = tensor_part(name, region, self._graph)
        if label not in self.constants:
            tensor = self._source[name].const_value
            assert tensor is not None  # the graph calls it a constant
            if label != name:
                if name not in self._arrays:  # some kinds of tensors copy at each `numpy`
                    self._arrays[name] = tensor.numpy()
                part = self._arrays[name][region.slices]
                tensor = ir.Tensor(part, dtype=tensor.dtype, name=label)
            self._add_constant(label, tensor)
        return self.constants[label]

    def _add_constant(self, label: str, tensor: ir.TensorProtocol) -> ir.Value:
        shape, kind = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
        value = ir.Value(name=label, shape=shape, type=kind, const_value=tensor)
        self.constants[label] = value
        return value
