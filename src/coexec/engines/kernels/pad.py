"""Pad: elements of the input, or border elements as the mode defines them."""

from collections.abc import Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, literal
from coexec.engines.kernels.elements import moved
from coexec.engines.kernels.unsupported import numbers
from coexec.graph.graph import Operator, Tensor

_MODES = ("constant", "edge", "reflect")


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    shape, mode = tensors[op.inputs[0]].shape, op.text("mode", "constant")
    if mode not in _MODES:
        return f"Pad with the mode {mode!r}"
    for what, position in (("pads", 1), ("axes", 3)):
        if numbers(op, what, position) is None:
            return f"the {what} of Pad are computed, not constant"
    target = tensors[op.outputs[0]].shape
    borders = _borders(op, len(shape))
    if any(shape[axis] + b + e != target[axis] for axis, (b, e) in borders.items()):
        return "the pads of Pad do not fit its output"
    return None


def _borders(op: Operator, rank: int) -> dict[int, tuple[int, int]]:
    """Number of elements before and after each padded axis, by axis. Negative numbers crop."""
    pads, axes = numbers(op, "pads", 1) or (), numbers(op, "axes", 3)
    half = len(pads) // 2
    order = [int(a) % rank for a in axes] if axes else list(range(half))
    pairs = zip(pads[:half], pads[half:], strict=True)
    return {a: (int(b), int(e)) for a, (b, e) in zip(order, pairs, strict=True) if b or e}


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("pad", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    y = context.value(node.output)
    mode = op.text("mode", "constant")
    borders = _borders(op, len(y.shape))
    lines, inside = [], []
    for axis, (begin, end) in borders.items():
        size = x.shape[axis]
        lines.append(f"int q{axis} = p{axis} - {begin};")
        if mode == "constant":
            inside.append(f"q{axis} >= 0 && q{axis} < {size}")
        else:
            lines.append(_mirrored(mode, f"q{axis}", size, max(begin, end)))
    coordinates = [f"q{a}" if a in borders else f"p{a}" for a in range(len(y.shape))]
    outside = _outside(source, context, op) if inside else ""
    residue = None if 1 in borders else 0
    condition = f"({' && '.join(inside)})" if inside else ""
    return [
        moved(
            source,
            x,
            y,
            coordinates,
            lines=lines,
            residue=residue,
            inside=condition,
            outside=outside,
        )
    ]


def _mirrored(mode: str, q: str, size: int, most: int) -> str:
    """The statement that maps ``q`` to a position inside of the axis, at most ``most`` outside."""
    if mode == "edge" or size == 1:
        return f"{q} = clamp({q}, 0, {size - 1});"
    period = 2 * (size - 1)
    if most < size:  # reflected once
        return f"{q} = max({q}, -{q}); {q} = min({q}, {period} - {q});"
    return f"{q} = ({q} % {period} + {period}) % {period}; {q} = min({q}, {period} - {q});"


def _outside(source: Source, context: Context, op: Operator) -> str:
    """The value of the border: an attribute, or an input of one element; 0 by default."""
    if len(op.inputs) > 2 and op.inputs[2]:
        source.read("value", context.operand(op.inputs[2]))
        return "GET_value(0)"
    return literal(op.number("value", 0.0), context.tensors[op.inputs[0]].dtype)


KERNELS = {"Pad": Kernel(launches, why_not=why_not, refuses="the mode wrap; computed pads or axes")}
