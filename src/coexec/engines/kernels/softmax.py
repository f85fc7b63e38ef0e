"""Softmax and LogSoftmax; `rows` describes how a work item iterates over an axis."""

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.row_kernel import MAXIMUM, RowKernel, fold, total
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.graph.graph import Operator


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """Three passes over each row: for its maximum, the sum of exponentials, and the results."""
    op = node.operator
    source = Source("softmax", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    vectors = x.block == context.value(node.output).block
    columns = not node.epilogue
    rows = RowKernel(source, x, _axes(op, len(x.shape)), vectors=vectors, columns=columns)
    output = Output(source, context, node, scalar=rows.layout.kind == "plain")
    lines = fold(rows, "top", MAXIMUM) + fold(rows, "all", total("exp(v - top)"))
    if op.op_type == "LogSoftmax":
        lines += [f"const {rows.ctype} rest = top + log(all);"]
        lines += rows.each(output, lambda _: "v - rest")
    else:
        lines += [f"const {rows.ctype} scale = 1.0f / all;"]
        lines += rows.each(output, lambda _: "exp(v - top) * scale")
    return [rows.finish(lines, output.value)]


def _axes(op: Operator, rank: int) -> tuple[int, ...]:
    """The axes of a row: one axis; before opset 13 also all axes behind it."""
    if op.version and op.version < 13:
        return tuple(range(op.int("axis", 1) % rank, rank))
    return (op.int("axis", -1) % rank,)


KERNELS = dict.fromkeys(("LogSoftmax", "Softmax"), Kernel(launches, FLOAT32, takes_epilogue=True))
