"""Softmax, LogSoftmax and Hardmax; `rows` describes how a work item iterates over an axis."""

from coexec.engines.kernels.arg_extremum import extremum
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, indented
from coexec.engines.kernels.nan_order import in_eigens_order
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.reductions import MAXIMUM, fold, joined, total
from coexec.engines.kernels.row_kernel import RowKernel
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.graph.graph import Operator

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """Three passes over each row: for its maximum, the sum of exponentials, and the results."""
    op = node.operator
    source = Source("softmax", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    vectors = x.block == context.value(node.output).block and op.op_type != "Hardmax"
    columns = not node.epilogue
    rows = RowKernel(source, x, _axes(op, len(x.shape)), vectors=vectors, columns=columns)
    output = Output(source, context, node, scalar=rows.layout.kind == "plain")
    if op.op_type == "Hardmax":
        lines = extremum(rows, largest=True, last=False)
        lines += _of_rows_with_nan(rows, _axes(op, len(x.shape)))
        lines += rows.each(output, lambda access: f"({access.index} == found ? 1.0f : 0.0f)")
        return [rows.finish(lines)]
    lines = fold(rows, "top", MAXIMUM) + fold(rows, "all", total("exp(v - top)"))
    if op.op_type == "LogSoftmax":
        lines += [f"const {rows.ctype} rest = top + log(all);"]
        lines += rows.each(output, lambda _: "v - rest")
    else:
        lines += [f"const {rows.ctype} scale = 1.0f / all;"]
        lines += rows.each(output, lambda _: "exp(v - top) * scale")
    return [rows.finish(lines)]


def _of_rows_with_nan(rows: RowKernel, axes: tuple[int, ...]) -> list[str]:
    """Lines that find the maximum of a row with NaN as ONNX Runtime does; none if it is NaN."""
    layout = rows.layout
    lines = ["int broken = 0;"]
    lines += rows.loop(layout.scalars(), lambda _: ["broken |= v != v;"])
    lines += joined(rows.sharing, {"broken": "int"}, ["broken |= broken_other;"])
    start = f"{_number(rows, axes)} * {layout.length}"
    return [
        *lines,
        "if (broken) {",
        *indented(in_eigens_order(layout.element, layout.length, ">", start)),
        "  found = -1;",
        f"  for (int k = {layout.length - 1}; k >= 0; k--) "
        f"if ({layout.element('k')} == exact) found = k;",
        "}",
    ]


def _number(rows: RowKernel, axes: tuple[int, ...]) -> str:
    """Number of a row after ONNX Runtime has exchanged its axis and the last one."""
    row_axes, text = list(rows.layout.kept), "0"
    if len(axes) == 1 and row_axes and axes[0] < row_axes[-1]:
        row_axes.insert(axes[0], row_axes.pop())
    for axis in row_axes:
        text = f"({text} * {rows.layout.extents[axis]} + p{axis})"
    return text


def _axes(op: Operator, rank: int) -> tuple[int, ...]:
    """The axes of a row: one axis; before opset 13 also all axes behind it."""
    if op.version and op.version < 13:
        return tuple(range(op.int("axis", 1) % rank, rank))
    return (op.int("axis", -1) % rank,)


KERNELS = dict.fromkeys(
    ("Hardmax", "LogSoftmax", "Softmax"), Kernel(launches, FLOAT32, takes_epilogue=True)
)
