"""ReduceSum and its kind: `rows` tells how a work item goes along what is reduced."""

from collections.abc import Collection, Mapping

from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source
from coexec.engines.opencl.kernels.folds import MAXIMUM, Fold, fold, highest, lowest, total
from coexec.engines.opencl.kernels.operands import declare
from coexec.engines.opencl.kernels.output import Output
from coexec.engines.opencl.kernels.reasons import INTEGERS, NUMBERS, computed, wrong_type
from coexec.engines.opencl.kernels.row_kernel import RowKernel
from coexec.ir.graph import Operator, Tensor

__all__ = ["KINDS", "launches", "reduction", "why_not"]

_FLOATS = frozenset({"float32", "float64"})

_FOLDS: Mapping[str, tuple[Fold, str]] = {
    "Sum": (total("v"), "{a}"),
    "Mean": (total("v"), "{a} / {count}"),
    "Max": (MAXIMUM, "{a}"),
    "Min": (Fold("INFINITY", "v", "fmin({a}, {b})"), "{a}"),
    "Prod": (Fold("1.0f", "v", "({a} * {b})"), "{a}"),
    "L1": (total("fabs(v)"), "{a}"),
    "L2": (total("v * v"), "sqrt({a})"),
    "SumSquare": (total("v * v"), "{a}"),
    "LogSum": (total("v"), "log({a})"),
    "LogSumExp": (total("exp(v - top)"), "log({a}) + top"),
}
"""What is folded, and what is made of the result ``{a}``."""

KINDS = tuple(f"Reduce{kind}" for kind in _FOLDS)


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    kind = op.op_type.removeprefix("Reduce")
    allowed = _FLOATS if kind in ("L2", "LogSum", "LogSumExp") else NUMBERS
    if kind in ("Max", "Min"):
        allowed = NUMBERS | {"bool"}
    return wrong_type(op, tensors, allowed) or computed(op, 1, "list of axes")


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    rank = len(context.tensors[op.inputs[0]].shape)
    kind = op.op_type.removeprefix("Reduce")
    keep = bool(op.int("keepdims", 1))
    return [reduction(node, context, kind, _axes(op, rank), keep)]


def _axes(op: Operator, rank: int) -> tuple[int, ...]:
    """An attribute in old operator sets, an input in new ones."""
    given = op.constants.get(1, op.ints("axes", ()))
    if not given and not op.int("noop_with_empty_axes", 0):
        return tuple(range(rank))
    return tuple(sorted({int(axis) % rank for axis in given}))


def reduction(
    node: Node, context: Context, kind: str, axes: Collection[int], keep: bool
) -> KernelLaunch:
    """The kernel for one ``kind`` over ``axes``, which stay as axes of size 1 if ``keep``."""
    source = Source("reduce", context.arch)
    x = declare(source, context, "x", node.operator.inputs[0])
    blocked = bool(x.block) and x.block == context.value(node.output).block
    rows = RowKernel(source, x, tuple(axes))
    length, side_by_side = rows.layout.length, rows.layout.side_by_side
    output = Output(source, context, node, scalar=not (side_by_side and blocked and keep))
    operation, finish = _operation(kind, x.dtype)
    lines = []
    if kind == "LogSumExp":
        lines += fold(rows, "top", MAXIMUM)
        lines.append(f"top = fmax(top, ({rows.ctype})(-MAXFLOAT));")  # -INFINITY would give NaN
    lines += fold(rows, "all", operation)
    result = finish.format(a="all", count=f"{length}" if x.dtype in INTEGERS else f"{length}.0f")
    store = _store(rows, output, result, keep, len(x.shape), x.shape[1] if side_by_side else 1)
    return rows.finish([*lines, *store])


def _operation(kind: str, dtype: str) -> tuple[Fold, str]:
    operation, finish = _FOLDS[kind]
    if dtype in _FLOATS:
        return operation, finish
    if kind in ("Max", "Min"):
        start = lowest(dtype) if kind == "Max" else highest(dtype)
        return Fold(start, "v", f"{kind.lower()}({{a}}, {{b}})"), finish
    if kind == "L1":
        return total("(v < 0 ? -v : v)"), finish
    return operation, finish


def _store(
    rows: RowKernel, output: Output, result: str, keep: bool, rank: int, channels: int
) -> list[str]:
    """Lines for a vector, for each lane of one, or for a scalar."""
    kept, block = rows.layout.kept, rows.layout.block
    coordinates = {a: f"p{a}" if a in kept else "0" for a in range(rank) if keep or a in kept}
    if output.vector or not rows.layout.side_by_side:
        lines = output.store(result, list(coordinates.values()))
    else:
        lines = [f"const {rows.ctype} done = {result};"]
        for lane in range(block):
            at = list((coordinates | {1: f"channel + {lane}"}).values())
            lines += [
                f"if (channel + {lane} < {channels}) {{",
                *output.store(f"done.s{lane:x}", at),
                "}",
            ]
        lines.insert(0, f"const int channel = p1 * {block};")
    return ["if (item == 0) {", *lines, "}"] if rows.sharing > 1 else lines
