"""Norms: elements are shifted and scaled by statistics of their row.

The operators differ in the axes of a row (`rows` describes how a work item iterates over one), in
the statistics, and in the parameters: one for each channel, or one for each element of a row.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from coexec.engines.kernels.base import (
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    Value,
    in_half,
    literal,
)
from coexec.engines.kernels.epilogue import Operand, Output, operand_value
from coexec.engines.kernels.per_channel import PerChannel
from coexec.engines.kernels.row_kernel import RowKernel, fold, total
from coexec.engines.kernels.rows import Access
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.engines.kernels.value import neighbours
from coexec.graph.graph import Operator, Tensor

_Parameter = Callable[[Access], str]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if any(name in tensors for name in op.outputs[1:]):
        return f"{op.op_type} whose mean or deviation is read"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """One kernel that iterates over each row for its statistics, then for the results."""
    op = node.operator
    source = Source("normalized", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    rows = _rows(op, source, x, context)
    parameters = _parameters(op, source, context, rows)
    output = Output(source, context, node, scalar=rows.layout.kind == "plain")
    lines, value = _statistics(op, rows)

    def result(access: Access) -> str:
        texts = [parameter(access) for parameter in parameters]
        return " + ".join([" * ".join([value, *texts[:1]]), *texts[1:]])

    return [rows.finish(lines + rows.each(output, result), output.value)]


def _rows(op: Operator, source: Source, x: Value, context: Context) -> RowKernel:
    alike = x.block == context.value(op.outputs[0]).block
    rank = len(x.shape)
    if op.op_type == "InstanceNormalization":
        return RowKernel(source, x, range(2, rank), vectors=alike)
    along = range(op.int("axis", -1) % rank, rank)
    full = x.block or all(_lies_like(n, along, x, context) for n in op.inputs[1:] if n)
    return RowKernel(source, x, along, vectors=alike and bool(full))


def _lies_like(name: str, along: Sequence[int], x: Value, context: Context) -> bool:
    """Whether a parameter has the order of the elements of a row-major row."""
    row_major = context.constant(name) is not None or not context.value(name).block
    return row_major and context.tensors[name].shape == x.shape[along[0] :]


def _parameters(
    op: Operator, source: Source, context: Context, rows: RowKernel
) -> list[_Parameter]:
    """Expressions of scale and shift, if the operator has them."""
    names = [n for n in op.inputs[1:3] if n]
    arguments = ["scale", "shift"][: len(names)]
    if op.op_type == "InstanceNormalization":
        return [
            _per_channel(PerChannel(source, argument, context.operand(name)), rows)
            for argument, name in zip(arguments, names, strict=True)
        ]
    return [
        _per_element(source, context, argument, name, rows, op)
        for argument, name in zip(arguments, names, strict=True)
    ]


def _per_channel(parameter: PerChannel, rows: RowKernel) -> _Parameter:
    if rows.layout.kind in ("lanes", "across"):
        return lambda access: parameter.vector(access.coordinates[1])
    return lambda access: parameter.scalar(access.coordinates[1])


def _per_element(
    source: Source, context: Context, argument: str, name: str, rows: RowKernel, op: Operator
) -> _Parameter:
    if rows.layout.kind != "contiguous":
        vectors = None if rows.layout.kind == "plain" else context.value(op.outputs[0])
        operand = Operand(source, context, operand_value(context, name), argument, vectors)
        return lambda access: operand.at(access.coordinates)
    source.read(argument, context.operand(name))
    size = math.prod(context.tensors[name].shape)
    half = in_half(context.arch, "float32", size)
    aligned = context.arch.in_vectors(rows.layout.length)
    source.define(neighbours(argument, half, rows.layout.block, aligned))

    def text(access: Access) -> str:
        if access.vector:
            return f"NEAR_{argument}({access.index})"
        return f"GET_{argument}({access.index})"

    return text


def _statistics(op: Operator, rows: RowKernel) -> tuple[list[str], str]:
    """Lines that declare the statistics of a row, and the expression of a result from ``v``."""
    count, kind = f"{rows.layout.length}.0f", rows.ctype
    epsilon = literal(op.number("epsilon", 1e-5))
    if op.op_type == "RMSNormalization":
        lines = fold(rows, "squares", total("v * v"))
        return [*lines, f"const {kind} factor = 1.0f / sqrt(squares / {count} + {epsilon});"], (
            "v * factor"
        )
    lines = fold(rows, "sum", total("v"))
    lines.append(f"const {kind} mean = sum / {count};")
    lines += fold(rows, "squares", total("(v - mean) * (v - mean)"))
    lines.append(f"const {kind} factor = 1.0f / sqrt(squares / {count} + {epsilon});")
    return lines, "(v - mean) * factor"


KERNELS = dict.fromkeys(
    ("InstanceNormalization", "LayerNormalization", "RMSNormalization"),
    Kernel(launches, FLOAT32, why_not, "a mean or deviation that is read", takes_epilogue=True),
)
