"""BatchNormalization of inference: a factor and a summand for each channel."""

import math
from collections.abc import Mapping

from coexec.devices.opencl.kernels.base import Context, Launch, Node, Source, literal
from coexec.devices.opencl.kernels.operands import PerChannel
from coexec.devices.opencl.kernels.output import Output
from coexec.devices.opencl.kernels.positions import at, split
from coexec.devices.opencl.kernels.reasons import wrong_type
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    x, scale = (tensors[n] for n in op.inputs[:2])
    if op.int("training_mode", 0) or any(n in tensors for n in op.outputs[1:]):
        return "BatchNormalization in training mode"
    if not op.int("spatial", 1) or scale.shape != x.shape[1:2]:
        return "BatchNormalization with other than one parameter a channel"
    return wrong_type(op, tensors)


def launches(node: Node, context: Context) -> list[Launch]:
    """A work item for each vector of channels, or for each scalar."""
    op = node.operator
    x = context.value(op.inputs[0])
    source = Source("batch_norm", context.arch)
    source.read("x", x)
    parameters = [
        PerChannel(source, context, argument, name)
        for argument, name in zip(
            ("scale", "shift", "mean", "variance"), op.inputs[1:], strict=True
        )
    ]
    output = Output(source, context, node, scalar=x.block != context.value(node.output).block)
    shape = x.shape
    if output.vector:
        shape = (x.shape[0], x.slices, *x.shape[2:])
    coordinates = split("index", shape)
    get, text = ("LOAD", f"VEC_x({', '.join(coordinates)})") if output.vector else (
        "GET", at("x", coordinates))  # fmt: skip
    scale, shift, mean, variance = (
        p.vector(coordinates[1]) if output.vector else p.scalar(coordinates[1]) for p in parameters
    )
    epsilon = literal(op.number("epsilon", 1e-5))
    value = f"({get}_x({text}) - {mean}) * ({scale} / sqrt({variance} + {epsilon})) + {shift}"
    source.lines("  const int index = get_global_id(0);")
    source.lines("\n".join(f"  {line}" for line in output.store(value, coordinates)))
    return [source.launch((math.prod(shape),))]
