"""LRN: elements divided by a power of the squares of their neighbours along the channels.

A work item computes a vector of channels of a pixel, or a scalar in other layouts.
"""

import math

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, Value, literal
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.positions import at, split
from coexec.engines.kernels.unsupported import FLOAT32

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("lrn", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    output = Output(source, context, node, scalar=x.block != context.value(node.output).block)
    lanes = x.block if output.vector else 1
    shape = (x.shape[0], x.slices if output.vector else x.shape[1], *x.shape[2:])
    coordinates = split("index", shape)
    lines = ["const int index = get_global_id(0);"]
    lines += [f"const int p{axis} = {text};" for axis, text in enumerate(coordinates)]
    lines += _squares(x, op.int("size", 1), lanes)
    where = [f"p{axis}" for axis in range(len(shape))]
    kind, value = (
        (context.arch.vector, f"LOAD_x(VEC_x({', '.join(where)}))")
        if lanes > 1
        else ("float", f"GET_x({at('x', where)})")
    )
    scale = literal(op.number("alpha", 1e-4) / op.int("size", 1))
    lines += [
        f"const {kind} sum = {_sum(op.int('size', 1), lanes, kind)};",
        f"const {kind} base = {literal(op.number('bias', 1.0))} + {scale} * sum;",
        *output.store(f"{value} / {_power(op.number('beta', 0.75), kind)}", where),
    ]
    source.lines(lines)
    return [source.finish((math.prod(shape),))]


def _squares(x: Value, size: int, lanes: int) -> list[str]:
    """Lines that declare q0, q1, ...: the squares of all channels that ``lanes`` channels need."""
    lines = [f"const int first = p1 * {lanes} - {(size - 1) // 2};"]
    pixel = [f"p{axis}" for axis in range(2, len(x.shape))]
    for i in range(lanes + size - 1):
        channel = f"clamp(first + {i}, 0, {x.shape[1] - 1})"
        lines += [
            f"float q{i} = GET_x({at('x', ['p0', channel, *pixel])});",
            f"q{i} = first + {i} >= 0 && first + {i} < {x.shape[1]} ? q{i} * q{i} : 0.0f;",
        ]
    return lines


def _sum(size: int, lanes: int, kind: str) -> str:
    terms = (
        f"({kind})({', '.join(f'q{lane + tap}' for lane in range(lanes))})" for tap in range(size)
    )
    return " + ".join(terms)


def _power(beta: float, kind: str) -> str:
    """``base`` to the power of ``beta``, which is 0.75 almost always."""
    if beta == 0.75:
        return "(sqrt(base) * sqrt(sqrt(base)))"
    return f"pow(base, ({kind})({literal(beta)}))"


KERNELS = {"LRN": Kernel(launches, FLOAT32, takes_epilogue=True)}
