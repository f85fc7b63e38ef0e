"""Rules that hold bit by bit, for every input: also for NaN, infinity and -0.0.

Operators that change nothing vanish, and chains of those that only move values become one. A rule
with a tolerance has no place here: a number close to zero or one is neither.
"""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from coexec.arrays import Array, is_float
from coexec.model.folding import fold
from coexec.model.replacing import (
    Replacement,
    Rule,
    constant,
    equivalent,
    opset_of,
    replace,
    static_shape,
)

__all__ = ["IDENTITIES", "remove_identities"]

_ROUNDS = 8
_VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that give the values of their first input another shape."""
_MOST_CONSTANTS = 1 << 16
"""Most elements of a constant that is examined: larger ones are not all zeros or ones."""
_DROPOUT_TRAINS_SINCE = 12


def remove_identities(model: ir.Model) -> None:
    """Apply the rules in place until none applies, and fold the new constants."""
    for _ in range(_ROUNDS):
        changed = False
        for node in list(model.graph):
            new = equivalent(IDENTITIES, node)
            changed |= new is not None and replace(node, new) is not None
        common.RemoveUnusedNodesPass()(model)
        if not changed:
            return
        fold(model)


def _neutral(node: ir.Node) -> ir.Value | None:
    """x * 1, x / 1, x + 0 and x - 0 become x.

    For floats, -0.0 + 0.0 and -0.0 - -0.0 are 0.0, so no rule applies to these.
    """
    places = (0, 1) if node.op_type in ("Add", "Mul") else (1,)
    for place in places:
        value, other = node.inputs[1 - place], node.inputs[place]
        numbers = constant(other)
        if value is None or numbers is None or numbers.size > _MOST_CONSTANTS:
            continue
        shape = static_shape(value)
        if shape is None or shape != static_shape(node.outputs[0]):
            continue
        if _changes_nothing(node.op_type, numbers):
            return value
    return None


def _changes_nothing(op_type: str, numbers: Array) -> bool:
    if op_type in ("Mul", "Div"):
        return bool((numbers == 1).all())
    if (numbers != 0).any():
        return False
    if not is_float(numbers.dtype):
        return True
    negative = np.signbit(numbers.astype(np.float64))
    return bool(negative.all() if op_type == "Add" else not negative.any())


def _view(node: ir.Node) -> Replacement | ir.Value | None:
    """A chain of views becomes one Reshape to the last shape, or nothing if that is the first
    shape.

    A Flatten becomes a Reshape, too, and a computed shape becomes a constant. No size may be 0,
    because 0 has another meaning in a Reshape.
    """
    value = source = node.inputs[0]
    shape = static_shape(node.outputs[0])
    if value is None or source is None or shape is None:
        return None
    while (maker := source.producer()) is not None and _is_view(maker):
        if maker.inputs[0] is None:
            return None
        source = maker.inputs[0]
    if static_shape(source) == shape:
        return source
    simple = node.op_type != "Flatten" and source is value
    if math.prod(shape) == 0 or (simple and _tells_shape(node)):
        return None
    return Replacement("Reshape", [source, np.array(shape, np.int64)], covers=[node])


def _is_view(node: ir.Node) -> bool:
    return not node.domain and node.op_type in _VIEWS


def _tells_shape(node: ir.Node) -> bool:
    """Whether the second input of a view is a constant, or there is none."""
    return len(node.inputs) < 2 or node.inputs[1] is None or constant(node.inputs[1]) is not None


def _transpose(node: ir.Node) -> Replacement | ir.Value | None:
    """Two Transposes become one, and one that leaves the axes in order vanishes."""
    source = node.inputs[0]
    order = _order(node)
    if source is None or order is None:
        return None
    maker = source.producer()
    if maker is not None and maker.op_type == "Transpose" and not maker.domain:
        first, source = _order(maker), maker.inputs[0]
        if first is None or source is None or len(first) != len(order):
            return None
        order = [first[axis] for axis in order]
    elif order != sorted(order):
        return None
    if order == sorted(order):
        return source
    return Replacement("Transpose", [source], {"perm": ir.AttrInt64s("perm", order)}, [node])


def _order(node: ir.Node) -> list[int] | None:
    """The order of axes of a Transpose; None if it follows from a rank that is not known."""
    if "perm" in node.attributes:
        attribute = node.attributes["perm"]
        return None if attribute.is_ref() else list(attribute.as_ints())
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    return list(reversed(range(len(value.shape))))


def _slice(node: ir.Node) -> ir.Value | None:
    """A Slice in steps of 1 that keeps all elements vanishes."""
    value = node.inputs[0]
    if value is None or "steps" in node.attributes:
        return None
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    numbers = None if steps is None else constant(steps)
    if steps is not None and (numbers is None or (numbers != 1).any()):
        return None
    shape = static_shape(value)
    return value if shape is not None and shape == static_shape(node.outputs[0]) else None


def _relu(node: ir.Node) -> ir.Value | None:
    """A Relu behind a Relu vanishes."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    return value if maker is not None and (maker.domain, maker.op_type) == ("", "Relu") else None


def _scatter(node: ir.Node) -> ir.Value | None:
    """A ScatterND that replaces every row, in order, becomes its updates."""
    if node.attributes.get_string("reduction", "none") != "none":
        return None
    data, _, updates = node.inputs
    indices, shape = constant(node.inputs[1]), static_shape(data)
    if indices is None or not shape or shape != static_shape(updates):
        return None
    every = np.arange(shape[0]).reshape(-1, 1)
    return updates if np.array_equal(indices, every) else None


def _dropout(node: ir.Node) -> ir.Value | None:
    """A Dropout in an operator set in which it never trains vanishes, if nothing reads its mask."""
    read = any(v.uses() or v.is_graph_output() for v in node.outputs[1:])
    return None if read or opset_of(node) >= _DROPOUT_TRAINS_SINCE else node.inputs[0]


IDENTITIES: Mapping[str, Rule] = {
    "Add": _neutral, "Div": _neutral, "Dropout": _dropout, "Mul": _neutral, "Relu": _relu,
    "ScatterND": _scatter, "Slice": _slice, "Sub": _neutral, "Transpose": _transpose,
    **dict.fromkeys(_VIEWS, _view),
}  # fmt: skip
"""Rule by standard operator."""
