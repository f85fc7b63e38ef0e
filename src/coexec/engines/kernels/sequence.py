"""Range, EyeLike, Shape and Size: elements follow from their position and a few numbers."""

import math

import numpy as np

from coexec.engines.kernels.base import CTYPES, Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.elements import each_scalar
from coexec.graph.graph import Operator

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """One work item for each element."""
    op = node.operator
    source = Source("sequence", context.arch)
    y = context.value(node.output)
    if op.op_type == "Range":
        source.read("start", context.operand(op.inputs[0]))
        source.read("delta", context.operand(op.inputs[2]))
        value = "GET_start(0) + p0 * GET_delta(0)"
    elif op.op_type == "EyeLike":
        value = f"p1 == p0 + {op.int('k', 0)} ? 1 : 0"
    else:
        source.constant("sizes", _sizes(op, context), vector=1)
        value = "GET_sizes(get_global_id(0))"
    source.write("y", y)
    return [each_scalar(source, y, [], f"({CTYPES[y.dtype]})({value})")]


def _sizes(op: Operator, context: Context) -> np.ndarray:
    shape = context.tensors[op.inputs[0]].shape
    if op.op_type == "Size":
        return np.array([math.prod(shape)], np.int64)
    end = op.int("end", len(shape))
    return np.array(shape[op.int("start", 0) : end], np.int64)


KERNELS = dict.fromkeys(("EyeLike", "Range", "Shape", "Size"), Kernel(launches))
