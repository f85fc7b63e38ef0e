"""ScatterElements, Scatter and ScatterND: a copy of the data, then the updates in their order.

Several updates may refer to one element. A work item applies all updates that may meet, one after
the other, so that sums need no atomics and the last update wins.
"""

import math
from collections.abc import Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, indented
from coexec.engines.kernels.gather_text import moved
from coexec.engines.kernels.indices import Indices
from coexec.engines.kernels.positions import at, split_lines
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]

_REDUCTIONS = {
    "none": "{b}",
    "add": "{a} + {b}",
    "mul": "{a} * {b}",
    "max": "{a} > {b} ? {a} : {b}",
    "min": "{a} < {b} ? {a} : {b}",
}


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    reduction = op.text("reduction", "none")
    return None if reduction in _REDUCTIONS else f"{op.op_type} with the reduction {reduction!r}"


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    source = Source("copy", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(node.output)
    target = [f"p{axis}" for axis in range(len(y.shape))]
    copy = moved(source, x, y, target, residue=0)
    update = _by_tuples if node.operator.op_type == "ScatterND" else _by_elements
    return [copy, update(node, context)]


def _declared(node: Node, context: Context) -> tuple[Source, Indices, tuple[int, ...]]:
    """A kernel with "indices", "updates" and "y", the indices, and their shape."""
    source = Source("scatter", context.arch)
    indices = source.read("indices", context.operand(node.operator.inputs[1]))
    source.read("updates", context.operand(node.operator.inputs[2]))
    source.write("y", context.value(node.output))
    return source, Indices(source, context, node.operator, 1), indices.shape


def _store(node: Node, target: list[str], update: list[str]) -> str:
    reduction = _REDUCTIONS[node.operator.text("reduction", "none")]
    value = reduction.format(a="GET_y(at)", b=f"GET_updates(AT_updates({', '.join(update)}))")
    return f"const int at = AT_y({', '.join(target)}); PUT_y(at, {value});"


def _by_elements(node: Node, context: Context) -> KernelLaunch:
    """One work item for all updates along the axis."""
    source, index, shape = _declared(node, context)
    axis = node.operator.int("axis", 0) % len(shape)
    update = ["k" if a == axis else f"p{a}" for a in range(len(shape))]
    target = [f"q{a}" if a == axis else f"p{a}" for a in range(len(shape))]
    outer_sizes = [1 if a == axis else size for a, size in enumerate(shape)]
    size = context.tensors[node.output].shape[axis]
    source.add(split_lines("get_global_id(0)", outer_sizes))
    source.add(f"  for (int k = 0; k < {shape[axis]}; k++) {{")
    position = index.position(f"q{axis}", at("indices", update), axis, size)
    source.add(f"    {position}\n    {_store(node, target, update)}\n  }}")
    return source.finish((math.prod(outer_sizes),))


def _by_tuples(node: Node, context: Context) -> KernelLaunch:
    """One work item for an element of all updates, which are elements or whole parts of the data.

    p0, p1, ... is the position of an update; i0, i1, ... is the position of the element in it.
    """
    source, index, shape = _declared(node, context)
    outer, count = shape[:-1], shape[-1]
    data = context.tensors[node.output].shape
    inside = [f"i{a}" for a in range(len(data) - count)]
    updated = [f"p{a}" for a in range(len(outer))]
    source.add(split_lines("get_global_id(0)", data[count:], "i"))
    source.add(f"  for (int u = 0; u < {math.prod(outer)}; u++) {{")
    source.add(split_lines("u", outer))
    lines = [
        index.position(f"q{a}", at("indices", [*updated, str(a)]), a, data[a]) for a in range(count)
    ]
    lines.append(_store(node, [*(f"q{a}" for a in range(count)), *inside], updated + inside))
    source.add("\n".join(indented(lines, 2)) + "\n  }")
    return source.finish((math.prod(data[count:]),))


KERNELS = dict.fromkeys(
    ("Scatter", "ScatterElements", "ScatterND"),
    Kernel(launches, why_not=why_not, refuses="unknown reductions"),
)
