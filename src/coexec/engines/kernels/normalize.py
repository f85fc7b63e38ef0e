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
from coexec.engines.kernels.epilogue import Operand, operand_value
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.per_channel import PerChannel
from coexec.engines.kernels.positions import at, neighbours
from coexec.engines.kernels.reductions import fold, total
from coexec.engines.kernels.row_kernel import RowKernel
from coexec.engines.kernels.rows import Access
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]

_Parameter = Callable[[Access], str]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if op.int("p", 2) not in (1, 2):
        return f"LpNormalization of order {op.int('p', 2)}: only of 1 and 2"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """One kernel that iterates over each row for its statistics, then for the results."""
    op = node.operator
    source = Source("norm", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    rows = _rows(op, source, x, context)
    parameters = _parameters(op, source, context, rows, x)
    output = Output(source, context, node, scalar=rows.layout.kind == "plain")
    lines, value = _statistics(op, rows)
    lines += _further_outputs(op, source, context, rows)

    def result(access: Access) -> str:
        texts = [parameter(access) for parameter in parameters]
        return " + ".join([" * ".join([value, *texts[:1]]), *texts[1:]])

    return [rows.finish(lines + rows.each(output, result))]


def _rows(op: Operator, source: Source, x: Value, context: Context) -> RowKernel:
    alike = x.block == context.value(op.outputs[0]).block
    rank = len(x.shape)
    if op.op_type == "GroupNormalization":
        return _groups(op, source, x, alike)
    if op.op_type == "LayerNormalization" or op.op_type == "RMSNormalization":
        along: Sequence[int] = range(op.int("axis", -1) % rank, rank)
        full = x.block or all(_lies_like(n, along, x, context) for n in op.inputs[1:] if n)
        alike = alike and bool(full) and not _further(op, context)
    elif op.op_type == "InstanceNormalization":
        along = range(2, rank)
    elif op.op_type == "LpNormalization":
        along = [op.int("axis", -1) % rank]
    else:
        along = sorted(a % rank for a in op.ints("axes", (0, 2, 3)))
    return RowKernel(source, x, along, vectors=alike)


def _groups(op: Operator, source: Source, x: Value, alike: bool) -> RowKernel:
    """The rows of GroupNormalization: batch and channels are counted as groups and members."""
    batch, channels, *spatial = x.shape
    groups = op.int("num_groups", 1)
    members = channels // groups

    def ungrouped(coordinates: Sequence[str], width: int) -> list[str]:
        group, member, *pixel = coordinates
        first = f"{group} % {groups} * {members // width}"
        return [f"({group} / {groups})", f"({first} + {member})", *pixel]

    whole = members if x.block else math.prod(spatial)  # vectors end with groups and channels
    return RowKernel(
        source,
        x,
        range(1, len(x.shape)),
        sizes=(batch * groups, members, *spatial),
        index_map=ungrouped,
        vectors=alike and whole % source.arch.block == 0,
    )


def _lies_like(name: str, along: Sequence[int], x: Value, context: Context) -> bool:
    """Whether a parameter has the order of the elements of a row-major row."""
    row_major = context.constant(name) is not None or not context.value(name).block
    return row_major and context.tensors[name].shape == x.shape[along[0] :]


def _parameters(
    op: Operator, source: Source, context: Context, rows: RowKernel, x: Value
) -> list[_Parameter]:
    """Expressions of scale and shift, if the operator has them."""
    names = [n for n in op.inputs[1:3] if n]
    arguments = ["scale", "shift"][: len(names)]
    if op.op_type in ("GroupNormalization", "InstanceNormalization"):
        repeats = [x.shape[1] // context.tensors[n].shape[0] for n in names]
        return [
            _per_channel(PerChannel(source, argument, context.operand(name), repeat), rows)
            for argument, name, repeat in zip(arguments, names, repeats, strict=True)
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
    source.define(neighbours(argument, half, rows.layout.block))

    def text(access: Access) -> str:
        if access.vector:
            return f"NEAR_{argument}({access.index})"
        return f"GET_{argument}({access.index})"

    return text


def _statistics(op: Operator, rows: RowKernel) -> tuple[list[str], str]:
    """Lines that declare the statistics of a row, and the expression of a result from ``v``."""
    count, kind = f"{rows.layout.length}.0f", rows.ctype
    epsilon = literal(op.number("epsilon", 1e-5))
    if op.op_type == "LpNormalization":
        second = op.int("p", 2) == 2
        lines = fold(rows, "norm", total("v * v" if second else "fabs(v)"))
        norm = "sqrt(norm)" if second else "norm"
        # A division, as the reciprocal of a denormal norm is infinite.
        return [*lines, f"const {kind} length = {norm};"], (
            f"(length == 0.0f ? ({kind})(0.0f) : v / length)"
        )
    if op.op_type == "RMSNormalization":
        lines = fold(rows, "squares", total("v * v"))
        return [*lines, f"const {kind} factor = 1.0f / sqrt(squares / {count} + {epsilon});"], (
            "v * factor"
        )
    lines = fold(rows, "sum", total("v"))
    lines.append(f"const {kind} mean = sum / {count};")
    lines += fold(rows, "squares", total("(v - mean) * (v - mean)"))
    deviation = f"sqrt(squares / {count} + {epsilon})"
    if op.op_type == "MeanVarianceNormalization":
        # ONNX adds 1e-9. ONNX Runtime does not: its result for equal numbers is NaN.
        deviation = f"sqrt(squares / {count})"
    lines.append(f"const {kind} factor = 1.0f / {deviation};")
    return lines, "(v - mean) * factor"


def _further(op: Operator, context: Context) -> list[tuple[str, str]]:
    """Names and variables of LayerNormalization's outputs behind the first one."""
    pairs = zip(op.outputs[1:], ("mean", "factor"), strict=False)
    return [(name, variable) for name, variable in pairs if name in context.tensors]


def _further_outputs(op: Operator, source: Source, context: Context, rows: RowKernel) -> list[str]:
    lines = []
    rank = len(context.tensors[op.inputs[0]].shape)
    coordinates = [f"p{a}" if a in rows.layout.kept else "0" for a in range(rank)]
    for name, variable in _further(op, context):
        source.write(f"{variable}_out", context.value(name))
        lines.append(f"PUT_{variable}_out({at(f'{variable}_out', coordinates)}, {variable});")
    return lines


KERNELS = {
    **dict.fromkeys(
        (
            "GroupNormalization",
            "InstanceNormalization",
            "LayerNormalization",
            "MeanVarianceNormalization",
            "RMSNormalization",
        ),
        Kernel(launches, FLOAT32, takes_epilogue=True),
    ),
    "LpNormalization": Kernel(
        launches, FLOAT32, why_not, "orders other than 1 and 2", takes_epilogue=True
    ),
}
