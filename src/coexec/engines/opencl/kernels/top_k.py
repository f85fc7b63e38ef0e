"""TopK: a work item finds the elements of a row one after the other, each by going along it.

An element comes behind another if its value does, or if it is equal and further back in the row.
So the next one is the first of all that come behind the one before, and nothing is marked.
"""

from collections.abc import Mapping

from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source
from coexec.engines.opencl.kernels.operands import declare
from coexec.engines.opencl.kernels.positions import at
from coexec.engines.opencl.kernels.reasons import NUMBERS, computed, wrong_type
from coexec.engines.opencl.kernels.row_kernel import RowKernel
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "why_not"]

_MOST_STEPS = 2**24
"""Of a work item: 0.1 s or so."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    reason = wrong_type(op, tensors, NUMBERS) or computed(op, 1, "K")
    if reason is not None:
        return reason
    shape = tensors[op.inputs[0]].shape
    length = shape[op.int("axis", -1) % len(shape)]
    if _count(op) * length > _MOST_STEPS:
        return f"TopK of {_count(op)} of {length} elements: the kernel is made for small numbers"
    return None


def _count(op: Operator) -> int:
    return int(op.constants[1][0]) if 1 in op.constants else op.int("k", 1)


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("top_k", context.arch)
    x = declare(source, context, "x", op.inputs[0])
    axis = op.int("axis", -1) % len(x.shape)
    rows = RowKernel(source, x, (axis,), vectors=False, shared=False)
    before = "<" if op.int("largest", 1) else ">"
    where = ["rank" if a == axis else f"p{a}" for a in range(len(x.shape))]
    stores = []
    for name, argument, value in zip(
        op.outputs, ("values", "indices"), ("best", "found"), strict=False
    ):
        if name in context.tensors:
            source.write(argument, context.value(name))
            stores.append(f"PUT_{argument}({at(argument, where)}, {value});")
    search = rows.loop(rows.layout.scalars(), lambda access: [
        f"const int behind = v {before} bound || (v == bound && {access.index} > last);",
        f"if ((last < 0 || behind) && (found < 0 || best {before} v)) {{",
        f"  best = v; found = {access.index};",
        "}",
    ])  # fmt: skip
    return [rows.finish([
        f"{rows.ctype} bound = 0;",
        "int last = -1;",
        f"for (int rank = 0; rank < {_count(op)}; rank++) {{",
        f"  {rows.ctype} best = 0;",
        "  int found = -1;",
        *(f"  {line}" for line in search),
        *(f"  {line}" for line in stores),
        "  bound = best; last = found;",
        "}",
    ])]  # fmt: skip
