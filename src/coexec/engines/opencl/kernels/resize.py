"""Resize and Upsample: one work item for a vector of channels of one output pixel, or for a scalar.

It adds up rows of the input times weights that stand in tables, see `resize_taps`.
"""

from collections.abc import Mapping, Sequence

from coexec.engines.opencl.kernels.base import (
    CTYPES,
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    literal,
)
from coexec.engines.opencl.kernels.elements import each_scalar, each_vector
from coexec.engines.opencl.kernels.moving import moved
from coexec.engines.opencl.kernels.operands import declare
from coexec.engines.opencl.kernels.parameters import numbers
from coexec.engines.opencl.kernels.patterns import is_float
from coexec.engines.opencl.kernels.resize_taps import COORDINATES, MODES, Taps, given_scales, taps
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    kind, mode = op.op_type, op.text("mode", "nearest")
    transform = op.text("coordinate_transformation_mode", "half_pixel")
    if mode not in MODES or transform not in COORDINATES:
        return f"{kind} with the mode {mode!r} and the coordinates {transform!r}"
    if mode != "nearest" and not is_float(tensors[op.inputs[0]].dtype):
        return f"{kind} of {tensors[op.inputs[0]].dtype} by interpolation"
    if (
        op.text("keep_aspect_ratio_policy", "stretch") != "stretch"
        and min(op.ints("axes", ()), default=0) < 0
    ):
        return f"{kind} that keeps the aspect ratio of axes counted from the last"
    if given_scales(op, tensors) is None:
        return f"the scales of {kind} are computed, not constant"
    if transform == "tf_crop_and_resize" and not numbers(op, "roi", 1):
        return f"the region of interest of {kind} is computed, not constant"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("resize", context.arch)
    x = declare(source, context, "x", op.inputs[0])
    y = context.value(node.output)
    changed = taps(op, context.tensors)
    for axis, table in changed.items():
        source.constant(f"rows{axis}", table.rows, vector=1)
    coordinates = [f"q{a}" if a in changed else f"p{a}" for a in range(len(y.shape))]
    other = literal(op.number("extrapolation_value", 0.0), y.dtype)
    if op.text("mode", "nearest") != "nearest":
        return [_sum(source, x, y, coordinates, changed, other)]
    lines = [f"const int q{a} = GET_rows{a}(p{a});" for a in changed]
    inside = " && ".join(f"q{a} >= 0" for a in changed)
    return [
        moved(source, x, y, coordinates, lines=lines, residue=None if 1 in changed else 0,
              inside=f"({inside})" if _crops(changed) else "", outside=other)
    ]  # fmt: skip


def _crops(changed: Mapping[int, Taps]) -> bool:
    """Whether some element of the output has none of the input near it."""
    return any((table.rows < 0).any() for table in changed.values())


def _sum(
    source: Source,
    x: Value,
    y: Value,
    coordinates: Sequence[str],
    changed: Mapping[int, Taps],
    other: str,
) -> KernelLaunch:
    """Nested loops, one for each axis that changes."""
    vectors = bool(x.block and y.block) and 1 not in changed
    ctype = source.arch.vector if vectors else CTYPES[y.dtype]
    source.write("y", y)
    lines = [f"{ctype} sum = ({ctype})(0);"]
    weight = ""
    for axis, table in changed.items():
        source.constant(f"weights{axis}", table.weights, vector=1)
        count = table.rows.shape[1]
        lines += [
            f"for (int i = p{axis} * {count}, end{axis} = i + {count}; i < end{axis}; i++) {{",
            f"  const int q{axis} = max(GET_rows{axis}(i), 0);",
            f"  const float w{axis} = {weight}GET_weights{axis}(i);",
        ]
        weight = f"w{axis} * "
    if vectors:
        load = f"LOAD_x(VEC_x({coordinates[0]}, s, {coordinates[2]}, {coordinates[3]}))"
    else:
        load = f"GET_x(AT_x({', '.join(coordinates)}))"
    lines += [f"sum += {weight}{load};", *("}" for _ in changed)]
    value = "sum"
    if _crops(changed):
        outside = (f"GET_rows{a}(p{a} * {t.rows.shape[1]}) < 0" for a, t in changed.items())
        value = f"{' || '.join(outside)} ? ({ctype})({other}) : sum"
    return (each_vector if vectors else each_scalar)(source, y, lines, value)
