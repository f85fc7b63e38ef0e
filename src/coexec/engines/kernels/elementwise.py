"""Element-wise operators as a separate kernel, with broadcasting and epilogues."""

from collections.abc import Mapping
from typing import Literal

from coexec.engines.kernels.base import CTYPES, Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.elements import each_run, each_scalar, each_vector
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.expressions import FLOAT_ONLY, OPERATORS, VECTOR_SAFE
from coexec.engines.kernels.unsupported import ALL, FLOATS
from coexec.graph.graph import Operator, Tensor
from coexec.graph.rules.base import broadcast_axes

_RIGHT_ALIGNED = 7
"""First opset in which operands broadcast as in numpy; before, an attribute was the axis."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    kind = op.op_type
    used = [tensors[name] for name in op.inputs if name]
    if kind == "Shrink" and used[0].dtype != "float32":
        return f"Shrink of {used[0].dtype}: ONNX Runtime computes it in float32"
    if kind == "Dropout":
        return _training(op, tensors)
    target = tensors[op.outputs[0]].shape
    if any(broadcast_axes(t.shape, target) is None for t in used):
        shapes = " and ".join(str(t.shape) for t in used)
        return f"{kind} of {shapes} to {target}: not a broadcast from the last axis on"
    if 0 < op.version < _RIGHT_ALIGNED and "axis" in op.attributes:
        return f"{kind} with an axis to broadcast along, as before opset {_RIGHT_ALIGNED}"
    return None


def _training(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if len(op.outputs) > 1 and op.outputs[1] in tensors:
        return "the mask of Dropout is read"
    if len(op.inputs) > 2 and op.inputs[2] and op.constants.get(2) != (False,):
        return "Dropout that may be training: its third input is no constant false"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """One work item for each vector of a blocked result, or for each scalar of another.

    On CPU cores vectors are made of rows, too: functions of vectors take a fraction of the time of
    functions of scalars.
    """
    source = Source("elementwise", context.arch)
    runs = context.arch.family == "cpu"
    epilogue = Epilogue(source, context, node, node.operators, merge=True, runs=runs)
    source.write("y", epilogue.out)
    if epilogue.vector:
        lines, result = epilogue.apply("", "", ["p0", "s", "p2", "p3"])
        return [each_vector(source, epilogue.out, lines, result)]
    lines, result = epilogue.apply("", "", [f"p{axis}" for axis in range(len(epilogue.out.shape))])
    if epilogue.run:
        return [each_run(source, epilogue.out, lines, result)]
    return [each_scalar(source, epilogue.out, lines, f"({CTYPES[epilogue.out.dtype]}){result}")]


def _kernel(kind: str) -> Kernel:
    refuses = {
        "Dropout": "training; a mask that is read",
        "Shrink": "float64: ONNX Runtime computes it in float32",
    }.get(kind, "alignment of axes other than numpy's")
    types = FLOATS if kind in FLOAT_ONLY else ALL
    joins: Literal["scalars", "vectors"] = "vectors" if kind in VECTOR_SAFE else "scalars"
    return Kernel(launches, types, why_not, refuses, takes_epilogue=True, joins=joins)


KERNELS = {kind: _kernel(kind) for kind in OPERATORS}
