"""ReduceSum and other reductions, and pools over all spatial axes.

`rows` describes how a work item iterates over the elements. Integers have no kernel: ONNX Runtime
adds them up as 64-bit floats, which GPUs may lack.
"""

from collections.abc import Collection, Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.row_kernel import MAXIMUM, Fold, RowKernel, fold, total
from coexec.engines.kernels.unsupported import FLOAT32, FLOATS, computed
from coexec.engines.kernels.value import at, neighbours
from coexec.graph.graph import Operator, Tensor

_NAN_OR = "SELECT(({{a}} {better} {{b}}) | ({{a}} != {{a}}), {{a}}, {{b}})"

_FOLDS: Mapping[str, tuple[Fold, str]] = {
    "Sum": (total("v"), "{a}"),
    "Mean": (total("v"), "{a} / {count}"),
    "Max": (Fold("-INFINITY", "v", _NAN_OR.format(better=">")), "{a}"),
    "Min": (Fold("INFINITY", "v", _NAN_OR.format(better="<")), "{a}"),
    "Prod": (Fold("1.0f", "v", "({a} * {b})"), "{a}"),
    "L1": (total("fabs(v)"), "{a}"),
    "L2": (total("v * v"), "sqrt({a})"),
    "SumSquare": (total("v * v"), "{a}"),
    "LogSum": (total("v"), "log({a})"),
    "LogSumExp": (total("exp(v - top)"), "log({a}) + top"),
}
"""The fold, and the expression of the output from its result ``{a}``."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    return computed(op, 1, "list of axes")


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    rank = len(context.tensors[op.inputs[0]].shape)
    kind = op.op_type.removeprefix("Reduce")
    keep = bool(op.int("keepdims", 1))
    return [_reduction(node, context, kind, _axes(op, rank), keep)]


_GLOBAL = {"GlobalAveragePool": "Mean", "GlobalMaxPool": "Max"}


def global_launches(node: Node, context: Context) -> list[KernelLaunch]:
    rank = len(context.tensors[node.operator.inputs[0]].shape)
    kind = _GLOBAL[node.operator.op_type]
    return [_reduction(node, context, kind, range(2, rank), keep=True)]


def _axes(op: Operator, rank: int) -> tuple[int, ...]:
    """The reduced axes: an attribute in old operator sets, an input in new ones."""
    axes = op.constants.get(1, op.ints("axes", ()))
    if not axes and not op.int("noop_with_empty_axes", 0):
        return tuple(range(rank))
    return tuple(sorted({int(axis) % rank for axis in axes}))


def _reduction(
    node: Node, context: Context, kind: str, axes: Collection[int], keep: bool
) -> KernelLaunch:
    """The kernel for one ``kind`` over ``axes``, which stay as axes of size 1 if ``keep``."""
    source = Source("reduce", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(node.output)
    blocked = bool(x.block) and x.block == y.block
    columns = not node.epilogue and not y.block and kind not in ("Max", "Min")
    rows = RowKernel(source, x, tuple(axes), columns=columns)
    if rows.layout.kind == "columns":
        source.define(neighbours("y", y.half, context.arch.block))
    length, side_by_side = rows.layout.length, rows.layout.side_by_side
    output = Output(source, context, node, scalar=not (side_by_side and blocked and keep))
    operation, finish = _FOLDS[kind]
    lines = []
    if kind == "LogSumExp":
        lines += fold(rows, "top", MAXIMUM)
        zero = f"({rows.ctype})(0.0f)"  # infinity - infinity would be NaN
        lines.append(f"top = SELECT(fabs(top) == ({rows.ctype})(INFINITY), {zero}, top);")
    lines += fold(rows, "all", operation)
    result = finish.format(a="all", count=f"{length}.0f")
    store = _store(rows, output, result, keep, len(x.shape), x.shape[1] if side_by_side else 1)
    return rows.finish([*lines, *store], y)


def _store(
    rows: RowKernel, output: Output, result: str, keep: bool, rank: int, channels: int
) -> list[str]:
    """Lines that store a vector, each lane of a vector, or a scalar."""
    kept, block = rows.layout.kept, rows.layout.block
    coordinates = {a: f"p{a}" if a in kept else "0" for a in range(rank) if keep or a in kept}
    if rows.layout.kind == "columns":
        coordinates[rank - 1] = rows.layout.first_column
        lines = [f"PUTS_y({at('y', list(coordinates.values()))}, {result});"]
    elif output.vector or not rows.layout.side_by_side:
        lines = output.store(result, list(coordinates.values()))
    else:
        lines = [f"const {rows.ctype} done = {result};"]
        for lane in range(block):
            where = list((coordinates | {1: f"channel + {lane}"}).values())
            lines += [
                f"if (channel + {lane} < {channels}) {{",
                *output.store(f"done.s{lane:x}", where),
                "}",
            ]
        lines.insert(0, f"const int channel = p1 * {block};")
    return ["if (item == 0) {", *lines, "}"] if rows.sharing > 1 else lines


KERNELS = {
    **{
        f"Reduce{kind}": Kernel(launches, FLOATS, why_not, "computed axes", takes_epilogue=True)
        for kind in _FOLDS
    },
    **dict.fromkeys(_GLOBAL, Kernel(global_launches, FLOAT32, takes_epilogue=True)),
}
