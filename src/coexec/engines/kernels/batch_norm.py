"""BatchNormalization of inference: a factor and a summand for each channel."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, Value, literal
from coexec.engines.kernels.elements import vectors
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.per_channel import PerChannel
from coexec.engines.kernels.touches import Touch, along, of_image
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.engines.kernels.value import at, split
from coexec.graph.graph import Operator, Tensor


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    x, scale = (tensors[n] for n in op.inputs[:2])
    if op.int("training_mode", 0) or any(n in tensors for n in op.outputs[1:]):
        return "BatchNormalization in training mode"
    if not op.int("spatial", 1) or scale.shape != x.shape[1:2]:
        return "BatchNormalization with other than one parameter a channel"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """A work item for each vector of channels, or for each scalar."""
    op = node.operator
    source = Source("batch_norm", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    epsilon = op.number("epsilon", 1e-5)
    numbers = _folded([context.operand(n) for n in op.inputs[1:5]], epsilon)
    arguments = ("scale", "shift", "mean", "variance")
    parameters = [PerChannel(source, a, n) for a, n in zip(arguments, numbers, strict=False)]
    output = Output(source, context, node, scalar=x.block != context.value(node.output).block)
    shape = (x.shape[0], x.slices, *x.shape[2:]) if output.vector else x.shape
    coordinates = split("index", shape)
    lines, grid = ["const int index = get_global_id(0);"], (math.prod(shape), 1, 1)
    touches: dict[str, Touch] = {}
    if output.vector and context.arch.family == "cpu":
        n, slices, height, width = shape
        lines, grid = vectors(context.arch, (n, slices, height, width))
        coordinates = ["p0", "s", "p2", "p3"]
        pixels, planes = along(0, grid[0]), along(2, grid[2])
        touches = {
            name: of_image(tensor, pixels, planes, pixels=True, joint=True)
            for name, tensor in (("x", x), ("y", output.value))
        }
    value = f"GET_x({at('x', coordinates)})"
    if output.vector:
        value = f"LOAD_x(VEC_x({', '.join(coordinates)}))"
    channel = coordinates[1]
    scale, shift, *statistics = (
        p.vector(channel) if output.vector else p.scalar(channel) for p in parameters
    )
    if statistics:
        mean, variance = statistics
        value, scale = f"({value} - {mean})", f"{scale} / sqrt({variance} + {literal(epsilon)})"
    lines += output.store(f"{value} * ({scale}) + {shift}", coordinates)
    source.lines(lines)
    return [source.finish(grid, touches=touches)]


def _folded(numbers: Sequence[Array | Value], epsilon: float) -> Sequence[Array | Value]:
    """Scale and shift that include mean and variance if all are constant; else all parameters."""
    arrays = [np.asarray(n, np.float64) for n in numbers if not isinstance(n, Value)]
    if len(arrays) < len(numbers):
        return numbers
    scale, shift, mean, variance = arrays
    factor = scale / np.sqrt(variance + epsilon)
    return factor, shift - mean * factor


KERNELS = {
    "BatchNormalization": Kernel(
        launches, FLOAT32, why_not, "training; other than one scale a channel", takes_epilogue=True
    )
}
