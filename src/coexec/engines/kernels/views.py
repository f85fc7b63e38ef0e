"""Views: tensors that kernels on GPUs read, or store, in the memory of another tensor.

Transpose, Slice, Split, Reshape and a Gather of one index only move elements. If they read a
row-major tensor, most of their results are parts of its memory, with other strides. Kernels of
products read their operands by strides, and so do those of a Concat. If nothing else reads such a
result, it is a view, and its operator needs no kernel. So attention divides a tensor into heads
without a kernel, and images into windows: an axis of a view may have several parts with a stride
each. The result of a Mul or Div by a constant scalar is a view, too: the scalar is a factor of the
matrix product.

A Transpose behind a product, perhaps with Reshapes between, needs no kernel either: the product
stores its result transposed.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coexec.engines.kernels.base import Context, Kernel, Node
from coexec.engines.kernels.layouts import RESHAPES
from coexec.engines.kernels.network import DeviceGraph, readers_of
from coexec.engines.kernels.slicing import axis_slices
from coexec.engines.kernels.transpose import permutation
from coexec.engines.kernels.value import Parts, TensorView, dense_axes
from coexec.graph.graph import Operator

_OPERATORS = frozenset({"Div", "Gather", "Mul", "Slice", "Split", "Transpose", *RESHAPES})
"""Operators whose results may be views."""
_LARGEST = 2.0**16
"""Of the factors of a view, and of their inverses: a product without them must not overflow."""


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
    makers = {node.output: node for node in network.nodes}
    for node in network.nodes:
        if node.operator.op_type == "Transpose" and node.output not in views:
            stored, passed = _stored_transposed(node, makers, readers, network, context, kernels)
            if stored is not None:
                views[makers[passed[-1]].operator.inputs[0]] = stored
                skipped.update(passed)
    return views, skipped


def _reads_views(
    node: Node, name: str, views: Mapping[str, TensorView], kernels: Mapping[str, Kernel]
) -> bool:
    """Whether a node can read ``name`` by strides, or needs no kernel."""
    op = node.operator
    if all(output in views for output in node.outputs):
        return True
    kernel, view = kernels.get(op.op_type), views[name]
    if kernel is None or kernel.takes_views == "none":
        return False
    if kernel.takes_views == "inputs":
        return view.factor == 1.0
    behind = any(name in fused.inputs for fused in node.epilogue)
    return name not in op.inputs[2:] and _is_even(view) and (view.factor == 1.0 or not behind)


def _is_even(view: TensorView) -> bool:
    """Whether its last axis has one stride, as products take it for granted."""
    return not view.axes or len(view.axes[-1]) <= 1


def _stored_transposed(
    node: Node,
    makers: Mapping[str, Node],
    readers: Mapping[str, Sequence[Node]],
    network: DeviceGraph,
    context: Context,
    kernels: Mapping[str, Kernel],
) -> tuple[TensorView | None, list[str]]:
    """Where the product in front of a Transpose stores its result, so that the Transpose needs no
    kernel; None if there is no such product, or it cannot. And the results of the Transpose and of
    the Reshapes between both, from the last to the first."""
    part = _start(node.output, context)
    passed: list[str] = []
    while part is not None:
        op = node.operator
        name = op.inputs[0]
        passed.append(node.output)
        if name in network.outputs or len(readers[name]) > 1 or name not in makers:
            break
        if op.op_type == "Transpose":
            order = permutation(op, len(part.axes))
            axes = tuple(part.axes[order.index(axis)] for axis in range(len(order)))
        else:
            axes = _reshaped(part.axes, context.tensors[name].shape) or ()
        part = replace(part, axes=axes)
        node = makers[name]
        kernel = kernels.get(node.operator.op_type)
        if kernel is not None and kernel.takes_views == "product":
            view = part.view()
            fits = len(axes) == len(context.tensors[name].shape) and _start(name, context)
            return (view if fits and _is_even(view) else None), passed
        if node.epilogue or node.operator.op_type not in RESHAPES or not axes:
            break
    return None, passed


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the memory of the tensor ``source``."""

    source: str
    axes: tuple[Parts, ...]
    offset: int = 0
    factor: float = 1.0

    def view(self) -> TensorView:
        shape = [math.prod(size for size, _ in parts) for parts in self.axes]
        axes = () if self.axes == dense_axes(shape) else self.axes
        return TensorView(self.source, self.offset, axes, self.factor)


def _possible(
    network: DeviceGraph, context: Context, made: Container[str]
) -> dict[str, TensorView]:
    """The results that may be views if kernels compute the tensors ``made``, which all nodes can
    then read."""
    found: dict[str, _Part] = {}
    for node in network.nodes:
        op = node.operator
        if node.epilogue or op.op_type not in _OPERATORS:
            continue
        data, factor = _scaled(op, context)
        start = found.get(data) or _start(data, context)
        if start is None:
            continue
        whole = start.factor * factor
        if not _may_multiply_later(whole, start.source, context):
            continue
        for name, axes, offset in _moved(op, start.axes, factor, context):
            if name not in made:
                found[name] = replace(start, axes=axes, offset=start.offset + offset, factor=whole)
    return {name: part.view() for name, part in found.items()}


def _may_multiply_later(factor: float, source: str, context: Context) -> bool:
    """Whether ``factor`` may be applied behind a product and not before it. Matrix units round what
    is stored in 32 bits to 16, with a smaller range."""
    if factor == 1.0:
        return True
    narrowed = context.arch.unit == "fp16" and not context.value(source).half
    return not narrowed and 1 / _LARGEST <= abs(factor) <= _LARGEST


def _start(name: str, context: Context) -> _Part | None:
    """The whole memory of a tensor; None if it is constant, empty, or not row-major float32."""
    tensor = context.tensors.get(name)
    if tensor is None or tensor.dtype != "float32" or 0 in tensor.shape:
        return None
    if context.constant(name) is not None or context.value(name).block:
        return None
    return _Part(name, dense_axes(tensor.shape))


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
    op: Operator, axes: tuple[Parts, ...], factor: float, context: Context
) -> Iterator[tuple[str, tuple[Parts, ...], int]]:
    """The results of an operator that are parts of its input's memory: their axes, and how far they
    start behind the input."""
    result = op.outputs[0]
    if op.op_type == "Transpose":
        yield result, tuple(axes[axis] for axis in permutation(op, len(axes))), 0
    elif op.op_type in RESHAPES:
        reshaped = _reshaped(axes, context.tensors[result].shape)
        if reshaped is not None:
            yield result, reshaped, 0
    elif op.op_type in ("Slice", "Split"):
        for name, cuts in (axis_slices(op, context.tensors) or {}).items():
            left, offset = list(axes), 0
            for axis, start, step in cuts:
                count = context.tensors[name].shape[axis]
                if step < 0 or len(left[axis]) > 1:
                    break
                for _, stride in left[axis]:
                    left[axis] = ((count, stride * step),) if count > 1 else ()
                    offset += start * stride
            else:
                yield name, tuple(left), offset
    elif op.op_type == "Gather":
        index, axis = context.constant(op.inputs[1]), op.int("axis", 0) % len(axes)
        size = math.prod(size for size, _ in axes[axis])
        if index is not None and not index.ndim and -size <= index < size:
            rest, offset = int(index) % size, 0
            for part_size, stride in reversed(axes[axis]):
                rest, coordinate = divmod(rest, part_size)
                offset += coordinate * stride
            yield result, (*axes[:axis], *axes[axis + 1 :]), offset
    elif factor != 1.0:
        yield result, axes, 0


def _reshaped(axes: Sequence[Parts], shape: Sequence[int]) -> tuple[Parts, ...] | None:
    """The axes of a tensor that is reshaped; None if an axis would need fractions of parts."""
    rest = _joined(part for parts in axes for part in parts)[::-1]  # the outermost is last
    found = []
    for size in shape:
        parts = []
        while size > 1:
            length, stride = rest.pop()
            if length % size == 0 and length > size:
                rest.append((length // size, stride))
                length, stride = size, stride * (length // size)
            if size % length:
                return None
            size //= length
            parts.append((length, stride))
        found.append(tuple(_joined(parts)))
    return tuple(found)


def _joined(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of an axis, of which neighbours with one stride for both are one."""
    joined: list[tuple[int, int]] = []
    for size, stride in parts:
        if joined and joined[-1][1] == size * stride:
            size *= joined.pop()[0]
        joined.append((size, stride))
    return joined
