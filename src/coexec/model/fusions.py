"""Rules that hold except for rounding, for numbers that do not overflow.

ONNX Runtime fuses most of these itself, but only inside of a task, and only for itself. Each use of
a rule is compared before it counts (`coexec.model.replacement_check`).
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from coexec.arrays import Array
from coexec.model.group import only_read
from coexec.model.replacement_check import compute_the_same
from coexec.model.replacing import (
    Replacement,
    Rule,
    attributes_of,
    constant,
    equivalent,
    opset_of,
    replace,
    static_shape,
)

__all__ = ["FUSIONS", "fuse"]

_HARD_SWISH_SINCE = 14
"""The opset that brought HardSwish."""
_PAD_TAKES_INPUTS_SINCE = 11
_SPATIAL_UNTIL = 9
"""BatchNormalization has an attribute "spatial" before this opset."""
_ROUNDED = 3e-8
"""Tolerance for 1/6: two neighbouring float32 numbers there differ by 1.5e-8."""
_MORE = 2
"""Elements of an axis beyond one window, in the inputs with which rules are compared."""
_MOST_STEPS = 8
"""Elements of an axis in the inputs with which transposed convolutions are compared."""


def fuse(model: ir.Model, rules: Mapping[str, Rule]) -> None:
    """Apply rules, in place, wherever they compute the same as the nodes that they replace.

    Args:
        rules: of one fusion, by standard operator.
    """
    results = (equivalent(rules, node) for node in list(model.graph))
    replacements = [new for new in results if isinstance(new, Replacement)]
    good = compute_the_same(replacements, model.opset_imports)
    now: dict[ir.Value, ir.Value] = {}
    for new in itertools.compress(replacements, good):
        end = new.covers[-1].outputs[0]
        inputs = [now.get(v, v) if isinstance(v, ir.Value) else v for v in new.inputs]
        now[end] = replace(new.covers[-1], dataclasses.replace(new, inputs=inputs)) or end
    common.RemoveUnusedNodesPass()(model)


def _before(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The standard node that makes ``value`` for a single reader, if it has one of ``op_types``."""
    node = None if value is None else value.producer()
    if node is None or value is None or node.domain or node.op_type not in op_types:
        return None
    return node if only_read(value) and value is node.outputs[0] else None


class _Padding(NamedTuple):
    """The elements that a Pad adds around the axes of images."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    filling: float


def _padding(pad: ir.Node) -> _Padding | None:
    """The padding of a Pad with a constant around the axes of images only; None if it is not
    known."""
    shape = static_shape(pad.inputs[0])
    if shape is None or pad.attributes.get_string("mode", "constant") != "constant":
        return None
    if opset_of(pad) < _PAD_TAKES_INPUTS_SINCE:
        amounts = np.array(pad.attributes.get_ints("pads", ()), np.int64)
        filling, axes = np.array(pad.attributes.get_float("value", 0.0)), None
    else:
        inputs = [*pad.inputs, None, None, None]
        parameters = [constant(value) for value in inputs[1:4]]
        if any(v is not None and a is None for v, a in zip(inputs[1:4], parameters, strict=True)):
            return None
        if parameters[0] is None:
            return None
        amounts, axes = parameters[0].reshape(-1), parameters[2]
        filling = np.array(0.0) if parameters[1] is None else parameters[1].reshape(-1)[:1]
    places = list(range(len(shape))) if axes is None else axes.reshape(-1).tolist()
    if len(amounts) != 2 * len(places) or filling.size != 1:
        return None
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, first, last in zip(places, *np.split(amounts, 2), strict=True):
        before[axis], after[axis] = int(first), int(last)
    if any((*before[:2], *after[:2])):
        return None
    return _Padding(tuple(before[2:]), tuple(after[2:]), float(filling.item()))


def _pad_into_conv(conv: ir.Node) -> Replacement | None:
    """Zeros around the input of a convolution become its own padding."""
    pad, weight = _before(conv.inputs[0], "Pad"), constant(conv.inputs[1])
    padding = None if pad is None else _padding(pad)
    if pad is None or padding is None or weight is None or not _is_zero(padding.filling):
        return None
    if min((*padding.before, *padding.after), default=0) < 0 or not np.isfinite(weight).all():
        return None
    count = len(padding.before)
    own = conv.attributes.get_ints("pads", (0,) * 2 * count)
    mode = conv.attributes.get_string("auto_pad", "NOTSET")
    if mode == "VALID":
        own = (0,) * 2 * count
    elif mode != "NOTSET":
        return None
    pads = [a + b for a, b in zip(own, (*padding.before, *padding.after), strict=True)]
    return Replacement(
        "Conv",
        [pad.inputs[0], *conv.inputs[1:]],
        attributes_of(conv, "auto_pad", pads=pads),
        [pad, conv],
        _sampled(pad.inputs[0], _extents(conv, weight.shape[2:])),
    )


def _pad_into_pool(pool: ir.Node) -> Replacement | None:
    """Zeros around the input of an AveragePool become its own padding, which it then counts.

    A Pad in front of a MaxPool stays: in ONNX Runtime, windows that reach into the padding treat
    NaN differently, and make the least finite number where they contain only -infinity.
    """
    pad = _before(pool.inputs[0], "Pad")
    padding = None if pad is None else _padding(pad)
    kernel = pool.attributes.get_ints("kernel_shape", ())
    plain = (
        pool.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        and not any(pool.attributes.get_ints("pads", ()))
        and not pool.attributes.get_int("ceil_mode", 0)
        and set(pool.attributes.get_ints("dilations", (1,))) == {1}
    )
    if pad is None or padding is None or not plain or not _is_zero(padding.filling):
        return None
    pads = (*padding.before, *padding.after)
    if len(pads) != 2 * len(kernel):
        return None
    # Pools refuse a window that contains only padding.
    if not all(0 <= m < k for m, k in zip(pads, (*kernel, *kernel), strict=True)):
        return None
    return Replacement(
        "AveragePool",
        [pad.inputs[0]],
        attributes_of(pool, "auto_pad", pads=pads, count_include_pad=1),
        [pad, pool],
        _sampled(pad.inputs[0], kernel),
    )


def _is_zero(number: float) -> bool:
    return number == 0 and not np.signbit(number)


def _normalisation(node: ir.Node) -> Replacement | None:
    """A BatchNormalization with known statistics scales the weights of the node before it."""
    made = _before(node.inputs[0], "Conv", "ConvTranspose", "Gemm")
    training = node.attributes.get_int("training_mode", 0)
    if made is None or training:
        return None
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return None
    spatial = node.attributes.get_int("spatial", 1)
    if opset_of(node) < _SPATIAL_UNTIL and not spatial:
        return None
    numbers = [constant(value) for value in node.inputs[1:5]]
    weight, bias = constant(made.inputs[1]), np.zeros((), np.float64)
    if len(made.inputs) > 2 and made.inputs[2] is not None:
        bias_values = constant(made.inputs[2])
        if bias_values is None:
            return None
        bias = bias_values.astype(np.float64)
    if weight is None or any(array is None for array in numbers):
        return None
    scale, shift, mean, variance = (a.astype(np.float64) for a in numbers if a is not None)
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    factor = scale / np.sqrt(variance + epsilon)
    if made.op_type == "Gemm":
        if made.attributes.get_int("transA", 0) or bias.size not in (1, factor.size):
            return None
        bias = bias.reshape(-1) * made.attributes.get_float("beta", 1.0)
    weights = (
        _scaled(made, weight.astype(np.float64), factor).astype(weight.dtype),
        ((bias - mean) * factor + shift).astype(weight.dtype),
    )
    if not all(np.isfinite(array).all() for array in weights):
        return None
    return Replacement(
        made.op_type,
        [made.inputs[0], *weights],
        attributes_of(made, "beta"),
        [made, node],
        _read_by(made, weight),
    )


def _scaled(node: ir.Node, weight: Array, factor: Array) -> Array:
    """The weights of ``node`` with each output channel multiplied by its factor."""
    if node.op_type == "Conv":
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    if node.op_type == "Gemm":
        return weight * (factor[:, None] if node.attributes.get_int("transB", 0) else factor)
    group, kernel = node.attributes.get_int("group", 1), weight.shape[2:]
    grouped = weight.reshape(group, -1, *weight.shape[1:])
    return (grouped * factor.reshape(group, 1, -1, *[1] * len(kernel))).reshape(weight.shape)


def _read_by(node: ir.Node, weight: Array) -> dict[str, tuple[int, ...]]:
    """The shape of the input with which a node with this weight is compared."""
    source = node.inputs[0]
    if node.op_type == "Conv":
        return _sampled(source, _extents(node, weight.shape[2:]))
    shape = static_shape(source)
    if shape is None or source is None:
        return {}
    steps = shape[2:]
    if "output_shape" not in node.attributes:
        steps = tuple(min(size, _MOST_STEPS) for size in steps)
    return {source.name or "": (shape[1], *steps)}


def _extents(node: ir.Node, kernel: Sequence[int]) -> list[int]:
    """Extents of the windows of a convolution, with the gaps of dilation."""
    dilations = node.attributes.get_ints("dilations", (1,) * len(kernel))
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]


def _sampled(value: ir.Value | None, windows: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shape of an input with as many channels as ``value``, and with few windows."""
    shape = static_shape(value)
    if value is None or shape is None or len(shape) != len(windows) + 2:
        return {}
    spatial = (min(size, window + _MORE) for size, window in zip(shape[2:], windows, strict=True))
    return {value.name or "": (shape[1], *spatial)}


def _hard_sigmoid(node: ir.Node) -> Replacement | None:
    """Clip(x + 3, 0, 6) / 6 becomes HardSigmoid."""
    clip = _before(node.inputs[0], "Clip")
    if clip is None or not _is_number(node.inputs[1], 6, node):
        return None
    pattern = _limited(clip)
    if pattern is None:
        return None
    attributes = {"alpha": ir.AttrFloat32("alpha", 1 / 6), "beta": ir.AttrFloat32("beta", 0.5)}
    return Replacement(
        "HardSigmoid", [pattern[0]], attributes, [*pattern[1], clip, node], _elements(pattern[0])
    )


def _hard_swish_of_product(node: ir.Node) -> Replacement | None:
    """x * Clip(x + 3, 0, 6) / 6 becomes HardSwish."""
    product = _before(node.inputs[0], "Mul")
    if product is None or not _is_number(node.inputs[1], 6, node):
        return None
    for limited, value in (tuple(product.inputs), tuple(reversed(product.inputs))):
        clip = _before(limited, "Clip")
        pattern = None if clip is None else _limited(clip)
        if clip is not None and pattern is not None and pattern[0] is value:
            return Replacement(
                "HardSwish", [value], {}, [*pattern[1], clip, product, node], _elements(pattern[0])
            )
    return None


def _hard_swish(node: ir.Node) -> Replacement | None:
    """x * HardSigmoid(x) becomes HardSwish."""
    for gate, value in (tuple(node.inputs), tuple(reversed(node.inputs))):
        sigmoid = _before(gate, "HardSigmoid")
        if sigmoid is None or value is None or sigmoid.inputs[0] is not value:
            continue
        numbers = (
            sigmoid.attributes.get_float("alpha", 0.2),
            sigmoid.attributes.get_float("beta", 0.5),
        )
        if opset_of(node) >= _HARD_SWISH_SINCE and _is_close(numbers):
            return Replacement("HardSwish", [value], {}, [sigmoid, node], _elements(value))
    return None


def _is_close(numbers: tuple[float, float]) -> bool:
    """Whether alpha is 1/6 in the precision of float32, and beta 1/2."""
    return abs(numbers[0] - 1 / 6) <= _ROUNDED and numbers[1] == 0.5


def _limited(clip: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    """x and the Add of Clip(x + 3, 0, 6)."""
    if opset_of(clip) < _HARD_SWISH_SINCE or len(clip.inputs) != 3:
        return None
    add = _before(clip.inputs[0], "Add")
    if add is None or not all(
        _is_number(v, n, clip) for v, n in zip(clip.inputs[1:], (0, 6), strict=True)
    ):
        return None
    for value, number in (tuple(add.inputs), tuple(reversed(add.inputs))):
        if value is not None and constant(value) is None and _is_number(number, 3, add):
            return (value, [add]) if static_shape(value) == static_shape(clip.outputs[0]) else None
    return None


def _is_number(value: ir.Value | None, number: float, reader: ir.Node) -> bool:
    """Whether a value is this number alone, and does not change the rank of the result of
    ``reader``."""
    array, shape = constant(value), static_shape(reader.outputs[0])
    if array is None or array.size != 1 or shape is None or array.ndim > len(shape):
        return False
    return float(array.item()) == number


def _elements(value: ir.Value | None) -> dict[str, tuple[int, ...]]:
    """The shape of some elements, for element-wise operators."""
    return {} if value is None else {value.name or "": (64,)}


FUSIONS: Mapping[str, Mapping[str, Rule]] = {
    "pad-into-conv": {"Conv": _pad_into_conv},
    "pad-into-pool": {"AveragePool": _pad_into_pool},
    "norm-into-weights": {"BatchNormalization": _normalisation},
    "product-to-hard-swish": {"Div": _hard_swish_of_product},
    "clip-to-hard-sigmoid": {"Div": _hard_sigmoid},
    "gate-to-hard-swish": {"Mul": _hard_swish},
}
"""By name of the pass, the rule for each standard operator."""
