"""Random operators that compute each element separately."""

from typing import Any

import numpy as np

from tests.helpers.campaign.draws import FLOATS, Draws
from tests.helpers.campaign.probe import Given, Probe

_UNARY = {
    "Abs": (7, 13), "Neg": (7, 13), "Sign": (9, 13), "Relu": (7, 13, 14), "Sqrt": (7, 13),
    "Exp": (7, 13), "Log": (7, 13), "Sigmoid": (7, 13), "Tanh": (7, 13), "Erf": (9, 13),
    "Ceil": (7, 13), "Floor": (7, 13), "Round": (11, 22), "Reciprocal": (7, 13), "Sin": (7, 22),
    "Cos": (7, 22), "Tan": (7, 22), "Asin": (7, 22), "Acos": (7, 22), "Atan": (7, 22),
    "Sinh": (9, 22), "Cosh": (9, 22), "Asinh": (9, 22), "Acosh": (9, 22), "Atanh": (9, 22),
    "Softplus": (7, 22), "Softsign": (7, 22), "HardSwish": (14, 22), "Mish": (18, 22),
    "IsNaN": (9, 13, 20), "Identity": (7, 13, 14, 19),
}  # fmt: skip
_WITH_INTS = {"Abs", "Neg", "Sign", "Relu", "Identity"}
_WITH_ALPHA = {
    "LeakyRelu": ((7, 16), {"alpha": (0.01, 0.3, -0.5, 0.0)}),
    "Elu": ((7, 22), {"alpha": (1.0, 0.3, 2.0)}),
    "Selu": ((7, 22), {"alpha": (1.67, 0.5), "gamma": (1.05, 2.0)}),
    "Celu": ((12,), {"alpha": (1.0, 0.5, 3.0)}),
    "HardSigmoid": ((7, 22), {"alpha": (0.2, 0.5), "beta": (0.5, 0.0, 0.3)}),
    "ThresholdedRelu": ((10, 22), {"alpha": (1.0, 0.0, -0.5)}),
    "Shrink": ((9,), {"lambd": (0.5, 0.0, 1.5), "bias": (0.0, 0.5)}),
    "Swish": ((24,), {"alpha": (0.5, 1.0, -1.0)}),
    "Gelu": ((20,), {"approximate": ("none", "tanh")}),
}


def unary(d: Draws) -> Probe:
    kind = d.pick(list(_UNARY))
    opset = d.pick(_UNARY[kind])
    dtype = d.floats()
    if kind in _WITH_INTS and d.chance(0.25) and (kind != "Relu" or opset >= 14):
        dtype = d.pick(("int32", "int64", "int8"))
    shape = d.shape()
    return Probe(kind, (d.data(shape, dtype),), {}, opset)


def with_alpha(d: Draws) -> Probe:
    kind = d.pick(list(_WITH_ALPHA))
    opsets, choices = _WITH_ALPHA[kind]
    attributes = {k: d.pick(v) for k, v in choices.items() if d.chance(0.7)}
    return Probe(kind, (d.data(d.shape(), d.floats()),), attributes, d.pick(opsets))


def _two(d: Draws, dtype: str) -> tuple[Given, Given]:
    shape = d.shape()
    second = shape if d.chance(0.4) else d.thinner(shape)
    pair = (d.data(shape, dtype), d.either(second, dtype))
    return pair if d.chance(0.5) else (pair[1], pair[0])


def arithmetic(d: Draws) -> Probe:
    kind = d.pick(("Add", "Sub", "Mul", "Div", "Pow", "Mod"))
    opset = d.opset(10, 13) if kind == "Mod" else d.opset(7, 13, 14) if kind != "Pow" else 13
    dtype = d.floats() if d.chance(0.7) else d.pick(("int32", "int64", "int8", "uint8"))
    attributes = {}
    if kind == "Mod" and (dtype in FLOATS or d.chance(0.4)):
        attributes["fmod"] = 1
    a, b = _two(d, dtype)
    if dtype not in FLOATS and kind in ("Div", "Mod"):  # a division by zero ends the process
        b = _without_zero(b)
        a = Given(a.sets[:1], a.constant)  # no smallest integer: its division by -1 does the same
    if kind == "Pow" and d.chance(0.5):
        b = d.constant(d.pick((0, 1, 2, 3, -1)), dtype if "u" not in dtype else "int64")
    if kind == "Pow" and dtype not in FLOATS:
        a, b = Given(a.sets[:1], a.constant), d.constant(d.number(0, 4), dtype)
    return Probe(kind, (a, b), attributes, opset)


def _without_zero(given: Given) -> Given:
    return Given(tuple(np.where(a == 0, 3, a).astype(a.dtype) for a in given.sets), given.constant)


def several(d: Draws) -> Probe:
    kind = d.pick(("Max", "Min", "Max", "Min", "Sum", "Mean"))
    opset = d.opset(8, 12, 13)
    ints = kind in ("Max", "Min") and opset >= 12 and d.chance(0.3)
    dtype = d.pick(("int32", "int64", "int8", "uint8")) if ints else d.floats()
    shape = d.shape()
    more = [d.either(d.thinner(shape), dtype) for _ in range(d.pick((0, 1, 1, 1, 2, 3)))]
    inputs = [d.data(shape, dtype), *more]
    order = d.rng.permutation(len(inputs))
    return Probe(kind, tuple(inputs[int(i)] for i in order), {}, opset)


def comparison(d: Draws) -> Probe:
    kind = d.pick(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"))
    dtype = d.floats() if d.chance(0.6) else d.pick(("int32", "int64", "bool", "uint8"))
    if dtype == "bool":
        kind = "Equal"
    opset = d.opset(12, 16) if kind.endswith("OrEqual") else d.opset(9, 13)
    return Probe(kind, _two(d, dtype), {}, opset)


def logic(d: Draws) -> Probe:
    kind = d.pick(("And", "Or", "Xor", "Not"))
    inputs: tuple[Given, ...] = _two(d, "bool")
    return Probe(kind, inputs[:1] if kind == "Not" else inputs, {}, d.opset(7, 13))


def where(d: Draws) -> Probe:
    shape = d.shape()
    dtype = d.pick((*FLOATS, "int64", "int32", "uint8", "bool"))
    a, b = (d.either(d.thinner(shape), dtype) for _ in range(2))
    return Probe("Where", (d.data(d.thinner(shape), "bool"), a, b), {}, d.opset(9, 16))


def clip(d: Draws) -> Probe:
    opset = d.opset(7, 11, 12, 13)
    dtype = d.floats()
    if opset >= 12 and d.chance(0.25):
        dtype = d.pick(("int8", "uint8", "int32", "int64"))
    x = d.data(d.shape(), dtype)
    low, high = d.pick(((-1, 1), (0, 6), (2, 1), (0, 0), (-np.inf, 3), (-np.inf, np.inf)))
    if opset == 7:
        attributes: dict[str, Any] = {"min": float(low), "max": float(high)}
        attributes = {k: v for k, v in attributes.items() if d.chance(0.8)}
        return Probe("Clip", (x,), attributes, opset)
    if dtype not in FLOATS:
        low, high = (int(np.nan_to_num(v, neginf=0, posinf=9)) for v in (max(low, 0), high))
    computed = d.chance(0.2)
    bounds = [
        Given((np.array(v, dtype),), not computed) if d.chance(0.8) else None for v in (low, high)
    ]
    while bounds and bounds[-1] is None:
        bounds.pop()
    return Probe("Clip", (x, *bounds), {}, opset)


def prelu(d: Draws) -> Probe:
    shape = d.shape(1, 5)
    slope = d.either(d.thinner(shape))
    if len(shape) > 2 and d.chance(0.3):
        slope = d.weights((shape[1], *[1] * (len(shape) - 2)))
    return Probe("PRelu", (d.data(shape), slope), {}, d.opset(7, 9, 16))


def cast(d: Draws) -> Probe:
    """Only values that fit into the target type: in C, other conversions are undefined."""
    kinds = (
        "float32",
        "float16",
        "float64",
        "int32",
        "int64",
        "int8",
        "uint8",
        "bool",
        "int16",
        "uint32",
        "uint64",
    )
    source, target = d.pick(kinds), d.pick(kinds)
    shape = d.shape()
    if (
        (source in FLOATS and target in FLOATS)
        or (source in FLOATS and target == "bool")
        or source == "bool"
    ):
        x = d.data(shape, source)
    else:
        values = d.rng.integers(0 if "u" in source + target else -100, 100, shape)
        numbers = values + (d.pick((0.0, 0.5, 0.999)) if source in FLOATS else 0)
        x = Given((np.asarray(numbers).astype(source),))
        if target in FLOATS and source not in FLOATS:
            x = d.data(shape, source)
    number = int(_onnx_type(target))
    return Probe("Cast", (x,), {"to": number}, d.opset(9, 13, 19, 21))


def _onnx_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def dropout(d: Draws) -> Probe:
    opset = d.opset(7, 10, 12, 13)
    x = d.data(d.shape(), d.floats())
    outputs = d.pick((1, 1, 2))
    if opset < 12:
        return Probe("Dropout", (x,), {"ratio": 0.3}, opset, outputs)
    ratio = [d.constant(0.3, "float32")] if d.chance(0.6) else []
    training = [d.constant(False, "bool")] if ratio and d.chance(0.3) else []
    return Probe("Dropout", (x, *ratio, *training), {}, opset, outputs)


FAMILIES = {
    unary: 9, with_alpha: 4, arithmetic: 7, several: 5, comparison: 3, logic: 2, where: 3,
    clip: 4, prelu: 2, cast: 4, dropout: 1,
}  # fmt: skip
