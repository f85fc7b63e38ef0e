"""Views: tensors that matrix products on GPUs read, or store, in the memory of another tensor.

Transpose, Slice, Split, Reshape and a Gather of one index only move elements. If they read a
row-major tensor, most of their results are parts of its memory, with other strides. Kernels of
products read their operands by strides. If nothing else reads such a result, it is a view, and its
operator needs no kernel. So attention divides a tensor into heads without a kernel. The result of a
Mul or Div by a constant scalar is a view, too: the scalar is a factor of the matrix product.

A Transpose behind a product needs no kernel either: the product stores its result transposed.
"""

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import Context, Kernel, Node
from coexec.engines.kernels.network import DeviceGraph, readers_of
from coexec.engines.kernels.slicing import axis_slices
from coexec.engines.kernels.transpose import permutation
from coexec.engines.kernels.value import TensorView
from coexec.graph.graph import Operator

_RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_OPERATORS = frozenset({"Div", "Gather", "Mul", "Slice", "Split", "Transpose", *_RESHAPES})
"""Operators whose results may be views."""
_LARGEST = 2.0**16
"""Of the factors of a view, and of their inverses: a product without them must not overflow."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the memory of the tensor ``source``. Its arrays have a byte for each scalar, which
    is never accessed: numpy computes their strides."""

    source: str
    whole: Array
    part: Array
    factor: float = 1.0

    def view(self) -> TensorView:
        offset = self.part.ctypes.data - self.whole.ctypes.data
        strides = () if self.part.flags.c_contiguous else self.part.strides
        return TensorView(self.source, offset, strides, self.factor)


def find_views(
    network: DeviceGraph, context: Context, kernels: Mapping[str, Kernel]
) -> tuple[dict[str, TensorView], set[str]]:
    """The views of a network by name, and the results of the nodes that need no kernel because of
    them. The source of a view is no view.

    ``kernels``: rows by operator type, which say what may read views and store into one.
    """
    readers = readers_of(network)
    made = {*network.outputs, *network.constants}
    while True:
        views = _possible(network, context, made)
        others = {
            name
            for name in views
            for reader in readers.get(name, ())
            if not _reads_views(reader, name, views, kernels)
        }
        if not others:
            break
        made |= others
    skipped = {n.output for n in network.nodes if n.output and views.keys() >= set(n.outputs)}
    products = {node.output for node in network.nodes if _takes_views(node, kernels)}
    for node in network.nodes:
        op = node.operator
        if op.op_type != "Transpose" or node.output in views or op.inputs[0] not in products:
            continue
        target = _start(node.output, context)
        only = op.inputs[0] not in network.outputs and len(readers[op.inputs[0]]) == 1
        if only and target and _start(op.inputs[0], context):
            order = np.argsort(permutation(op, target.part.ndim))
            views[op.inputs[0]] = replace(target, part=target.part.transpose(order)).view()
            skipped.add(node.output)
    return views, skipped


def _takes_views(node: Node, kernels: Mapping[str, Kernel]) -> bool:
    kernel = kernels.get(node.operator.op_type)
    return kernel is not None and kernel.takes_views


def _reads_views(
    node: Node, name: str, views: Container[str], kernels: Mapping[str, Kernel]
) -> bool:
    """Whether a node reads ``name`` as an operand of a product only, or needs no kernel."""
    op = node.operator
    if all(output in views for output in node.outputs):
        return True
    others = [*op.inputs[2:], *(n for fused in node.epilogue for n in fused.inputs)]
    return _takes_views(node, kernels) and name not in others


def _possible(
    network: DeviceGraph, context: Context, made: Container[str]
) -> dict[str, TensorView]:
    """The results that may be views if kernels compute the tensors ``made``, which all nodes can
    then read."""
    parts: dict[str, _Part] = {}
    for node in network.nodes:
        op = node.operator
        if node.epilogue or op.op_type not in _OPERATORS:
            continue
        data, factor = _scaled(op, context)
        start = parts.get(data) or _start(data, context)
        if start is None:
            continue
        whole = start.factor * factor
        if not _may_multiply_later(whole, start.source, context):
            continue
        for name, part in _moved(op, start.part, factor, context):
            if name not in made:
                parts[name] = replace(start, part=part, factor=whole)
    return {name: part.view() for name, part in parts.items()}


def _may_multiply_later(factor: float, source: str, context: Context) -> bool:
    """Whether ``factor`` may be applied behind a product and not before it. Matrix units round what
    is stored in 32 bits to 16, with a smaller range."""
    if factor == 1.0:
        return True
    narrowed = context.arch.unit == "fp16" and not context.value(source).half
    return not narrowed and 1 / _LARGEST <= abs(factor) <= _LARGEST


def _start(name: str, context: Context) -> _Part | None:
    """The whole memory of a tensor; None if it is constant, or not row-major float32."""
    tensor = context.tensors.get(name)
    if tensor is None or tensor.dtype != "float32":
        return None
    if context.constant(name) is not None or context.value(name).block:
        return None
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
    whole = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), tensor.shape, strides)
    return _Part(name, whole, whole)


def _scaled(op: Operator, context: Context) -> tuple[str, float]:
    """The first input and 1, or for a Mul or Div by a constant scalar, the other input and the
    factor."""
    if op.op_type not in ("Mul", "Div"):
        return op.inputs[0], 1.0
    data, other = op.inputs
    if op.op_type == "Mul" and context.constant(data) is not None:
        data, other = other, data
    array = context.constant(other)
    same = context.tensors[data].shape == context.tensors[op.outputs[0]].shape
    number = float(array.item()) if array is not None and array.size == 1 and same else 0.0
    if not number or not math.isfinite(number):
        return data, 1.0
    return data, number if op.op_type == "Mul" else 1 / number


def _moved(
    op: Operator, part: Array, factor: float, context: Context
) -> Iterator[tuple[str, Array]]:
    """The results of an operator that lie in the memory of ``part``."""
    result = op.outputs[0]
    if op.op_type == "Transpose":
        yield result, part.transpose(permutation(op, part.ndim))
    elif op.op_type in _RESHAPES:
        try:
            yield result, part.reshape(context.tensors[result].shape, copy=False)
        except ValueError:  # these elements have no constant distances
            return
    elif op.op_type in ("Slice", "Split"):
        for name, cuts in (axis_slices(op, context.tensors) or {}).items():
            places = [slice(None)] * part.ndim
            for axis, start, step in cuts:
                count = context.tensors[name].shape[axis]
                places[axis] = slice(start, start + count * step, step)
            if all(step > 0 for _, _, step in cuts):
                yield name, part[tuple(places)]
    elif op.op_type == "Gather":
        index, axis = context.constant(op.inputs[1]), op.int("axis", 0) % part.ndim
        if index is not None and not index.ndim and -part.shape[axis] <= index < part.shape[axis]:
            yield result, np.moveaxis(part, axis, 0)[int(index)]
    elif factor != 1.0:
        yield result, part
