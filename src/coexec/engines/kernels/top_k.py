"""TopK: a work item keeps the best elements of a row in a heap while it iterates over the row.

The heap contains positions in the row, with the worst element on top. An element that is better
replaces the top and sinks. At the end the top is removed repeatedly, which gives the elements in
order. Of equal elements, the first one is better.
"""

from collections.abc import Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, indented
from coexec.engines.kernels.positions import at
from coexec.engines.kernels.row_kernel import RowKernel
from coexec.engines.kernels.unsupported import NUMBERS, computed
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]

_MOST_STEPS = 2**26
"""Most steps of a work item, if all elements of a row sink to the bottom: about 0.1 s."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    reason = computed(op, 1, "K")
    if reason is not None:
        return reason
    shape = tensors[op.inputs[0]].shape
    length = shape[op.int("axis", -1) % len(shape)]
    if length * _count(op).bit_length() > _MOST_STEPS:
        return f"TopK of {_count(op)} of {length} elements: the kernel is made for small numbers"
    return None


def _count(op: Operator) -> int:
    return int(op.constants[1][0]) if 1 in op.constants else op.int("k", 1)


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op, count = node.operator, _count(node.operator)
    source = Source("top_k", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    axis = op.int("axis", -1) % len(x.shape)
    rows = RowKernel(source, x, (axis,), vectors=False, shared=False)
    length = rows.layout.length
    heap = context.temporary((rows.layout.count, count))
    source.write("heap", heap)
    value = f"GET_x({rows.layout.scalars().access('(i)').at})"
    where = ["rank" if a == axis else f"p{a}" for a in range(len(x.shape))]
    stores = []
    for name, argument, variable in zip(
        op.outputs, ("values", "indices"), ("VALUE(found)", "found"), strict=False
    ):
        if name in context.tensors:
            source.write(argument, context.value(name))
            stores.append(f"PUT_{argument}({at(argument, where)}, {variable});")
    source.define(f"#define VALUE(i) {value}")
    source.define(f"#define BETTER(a, b) ((a) {'>' if op.int('largest', 1) else '<'} (b))")
    source.define(
        "#define BEATS(i, j) (BETTER(VALUE(i), VALUE(j)) || "
        "((i) < (j) && !BETTER(VALUE(j), VALUE(i))))"
    )
    lines = [
        f"__global int* kept = (__global int*)heap + row * {count};",
        f"for (int start = {count} - 1; start >= 0; start--) {{",
        f"  kept[start] = {count} - 1 - start;",
        *indented(_sink("start", str(count))),
        "}",
        f"{rows.ctype} worst = VALUE(kept[0]);",
        f"for (int i = {count}; i < {length}; i++) {{",
        "  if (!BETTER(VALUE(i), worst)) continue;",
        "  kept[0] = i;",
        *indented(_sink("0", str(count))),
        "  worst = VALUE(kept[0]);",
        "}",
        *_taken_off(count, stores, ordered=bool(op.int("sorted", 1))),
    ]
    return [rows.finish(lines)]


def _sink(start: str, count: str) -> list[str]:
    """Lines that let an entry of the heap sink until none below is worse.

    If both entries below are worse, the worse one of them rises.
    """
    return [
        f"for (int at = {start}, below = 2 * at + 1; below < {count}; below = 2 * at + 1) {{",
        "  const int own = kept[at];",
        f"  const int both = below + 1 < {count};",
        "  const int left = BEATS(own, kept[below]);",
        "  const int right = both && (left ? !BEATS(kept[below + 1], kept[below])"
        " : BEATS(own, kept[below + 1]));",
        "  if (!left && !right) break;",
        "  below += right;",
        "  kept[at] = kept[below]; kept[below] = own;",
        "  at = below;",
        "}",
    ]


def _taken_off(count: int, stores: list[str], ordered: bool) -> list[str]:
    if not ordered:
        return [
            f"for (int rank = 0; rank < {count}; rank++) {{",
            "  const int found = kept[rank];",
            *indented(stores),
            "}",
        ]
    return [
        f"for (int rank = {count} - 1; rank >= 0; rank--) {{",
        "  const int found = kept[0];",
        *indented(stores),
        "  kept[0] = kept[rank];",
        *indented(_sink("0", "rank")),
        "}",
    ]


KERNELS = {"TopK": Kernel(launches, NUMBERS, why_not, "a computed K; a large K of many elements")}
