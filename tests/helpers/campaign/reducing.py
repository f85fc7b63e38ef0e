"""Random operators over axes: reductions, norms, products, quantized numbers."""

from typing import Any

import numpy as np

from tests.helpers.campaign.draws import Draws
from tests.helpers.campaign.probe import Given, Probe

_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)


def reduction(d: Draws) -> Probe:
    kind = d.pick((*_REDUCTIONS, "ReduceMax", "ReduceMin", "ReduceMean"))
    opset = d.opset(11, 13, 18, 20)
    by_input = opset >= (13 if kind == "ReduceSum" else 18)
    shape = d.shape(0 if d.chance(0.2) else 1)
    dtype = d.floats() if d.chance(0.75) else d.pick(("int32", "int64", "int32", "int8", "uint8"))
    x = d.data(shape, dtype, summed=kind not in ("ReduceMax", "ReduceMin"))
    if kind == "ReduceProd":
        x = Given(x.sets[:2])
    attributes: dict[str, Any] = {"keepdims": d.number(0, 1)} if d.chance(0.8) else {}
    axes = d.axes(len(shape)) if d.chance(0.85) else None
    if not by_input:
        return Probe(kind, (x,), attributes | ({"axes": axes} if axes else {}), opset)
    if d.chance(0.2):
        attributes["noop_with_empty_axes"] = d.number(0, 1)
    axes_input = d.parameter(axes) if axes else None if d.chance(0.5) else d.constant([])
    return Probe(kind, (x,) if axes_input is None else (x, axes_input), attributes, opset)


def soft(d: Draws) -> Probe:
    kind = d.pick(("Softmax", "Softmax", "LogSoftmax"))
    shape = d.shape(1)
    attributes = {"axis": d.axis(len(shape))} if d.chance(0.8) else {}
    return Probe(kind, (d.data(shape, d.floats()),), attributes, d.opset(7, 11, 13))


def channel_norm(d: Draws) -> Probe:
    shape = (d.number(1, 3), d.pick((1, 3, 4, 8, 17)), *d.ints(d.number(0, 3), 1, 6))
    kind = d.pick(
        ("BatchNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization")
    )
    x = d.data(shape, summed=True)
    scale, bias, mean = (d.weights((shape[1],)) for _ in range(3))
    if kind == "BatchNormalization":
        variance = Given((np.abs(d.weights((shape[1],)).first) + 0.1,), constant=True)
        inputs = (x, scale, bias, mean, variance)
        return Probe(kind, inputs, {"epsilon": d.pick((1e-5, 0.1))}, d.opset(7, 9, 14, 15))
    if kind == "InstanceNormalization":
        return Probe(kind, (x, scale, bias), {"epsilon": 1e-4}, d.opset(7, 22))
    groups = d.pick([g for g in (1, 2, 4) if shape[1] % g == 0])
    return Probe(kind, (x, scale, bias), {"num_groups": groups, "epsilon": 1e-4}, 21)


def layer_norm(d: Draws) -> Probe:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape), 0.0)
    end = shape[axis % len(shape) :]
    dtype = d.pick(("float32", "float32", "float32", "float16", "float64"))
    bias = [d.weights(end, dtype)] if d.chance(0.6) else []
    attributes = {"axis": axis, "epsilon": d.pick((1e-5, 0.1))}
    x = d.data(shape, dtype, summed=True)
    return Probe("LayerNormalization", (x, d.weights(end, dtype), *bias), attributes, 17)


def matmul(d: Draws) -> Probe:
    m, n, k = (d.size() for _ in range(3))
    batch = tuple(d.number(1, 3) for _ in range(d.number(0, 2)))
    thin = d.thinner(batch) if batch else ()
    left, right = d.pick((((m, k), (k, n)),) * 4 + (((k,), (k, n)), ((m, k), (k,)), ((k,), (k,))))
    dtype = d.pick(("float32", "float32", "float32", "float16", "float64", "int32", "int64"))
    a = (*batch, *left) if len(left) > 1 else left
    b = (*thin, *right) if len(right) > 1 else right
    inputs = (d.data(a, dtype, summed=True), d.either(b, dtype, summed=True))
    return Probe("MatMul", inputs, {}, d.opset(7, 9, 13))


def gemm(d: Draws) -> Probe:
    m, n, k = (d.size() for _ in range(3))
    opset = d.opset(9, 11, 13)
    attributes: dict[str, Any] = {"transA": d.number(0, 1), "transB": d.number(0, 1)}
    if d.chance(0.5):
        attributes |= {"alpha": d.pick((0.5, 1.0, 0.0)), "beta": d.pick((0.25, 1.0, 0.0))}
    dtype = d.pick(("float32", "float32", "float32", "float16", "float64"))
    a = (k, m) if attributes["transA"] else (m, k)
    b = (n, k) if attributes["transB"] else (k, n)
    c = d.pick(((), (1,), (n,), (m, 1), (1, n), (m, n)))
    bias = [d.either(c, dtype, summed=True)] if opset < 11 or d.chance(0.7) else []
    inputs = (d.data(a, dtype, summed=True), d.either(b, dtype, summed=True), *bias)
    return Probe("Gemm", inputs, attributes, opset)


_EQUATIONS = (
    ("ij,jk->ik", ((3, 4), (4, 5))), ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
    ("ij->ji", ((3, 4),)), ("ij->i", ((3, 4),)), ("ii->i", ((4, 4),)), ("i,j->ij", ((3,), (4,))),
    ("...ij,...jk->...ik", ((2, 3, 4), (4, 5))), ("bhqd,bhkd->bhqk", ((1, 2, 3, 4), (1, 2, 5, 4))),
    ("ij,ij->", ((3, 4), (3, 4))), ("ijk,kl,l->ij", ((2, 3, 4), (4, 5), (5,))),
)  # fmt: skip


def einsum(d: Draws) -> Probe:
    equation, shapes = d.pick(_EQUATIONS)
    dtype = d.pick(("float32", "float32", "float64", "int32"))
    inputs = tuple(d.data(s, dtype, summed=True) for s in shapes)
    return Probe("Einsum", inputs, {"equation": equation}, 12)


def quantized(d: Draws) -> Probe:
    kind = d.pick(
        (
            "QuantizeLinear",
            "QuantizeLinear",
            "DequantizeLinear",
            "DequantizeLinear",
            "DynamicQuantizeLinear",
            "MatMulInteger",
            "ConvInteger",
            "QLinearMatMul",
            "QLinearConv",
        )
    )
    if kind == "DynamicQuantizeLinear":
        return Probe(kind, (Given(d.data(d.shape(1)).sets[:1]),), {}, 11, 3)
    if kind in ("MatMulInteger", "QLinearMatMul"):
        return _integer_product(d, kind)
    if kind in ("ConvInteger", "QLinearConv"):
        return _integer_conv(d, kind)
    shape = d.shape(1, 4)
    axis = d.axis(len(shape), 0.0)
    opset = d.opset(10, 13, 19, 21)
    row = (shape[axis],) if opset > 10 and d.chance(0.5) else ()
    dtype = d.pick(("uint8", "int8"))
    scale = Given((np.asarray(d.rng.random(row) * 0.1 + 0.01).astype(np.float32),), constant=True)
    zero = [d.weights(row, dtype)] if d.chance(0.8) else []
    attributes = {"axis": axis} if opset > 10 and row else {}
    if kind == "DequantizeLinear":
        x = d.data(shape, dtype if zero or d.chance(0.5) else "uint8")
        return Probe(kind, (x, scale, *zero), attributes, opset)
    return Probe(kind, (d.data(shape), scale, *zero), attributes, opset)


def _numbers(d: Draws, shape: tuple[int, ...], dtype: str, constant: bool = False) -> Given:
    numbers = d.data(shape, dtype)
    return Given(numbers.sets[1:], constant=True) if constant else numbers


def _scale(value: float) -> Given:
    return Given((np.float32(value) * np.ones((), np.float32),), constant=True)


def _integer_product(d: Draws, kind: str) -> Probe:
    m, n, k = d.number(1, 9), d.number(1, 17), d.number(1, 33)
    a, b = d.pick((("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")))
    left, right = _numbers(d, (m, k), a), _numbers(d, (k, n), b, d.chance(0.7))
    if kind == "MatMulInteger":
        zeros = [d.constant(3, a), d.constant(2, b)][: d.number(0, 2)]
        return Probe(kind, (left, right, *zeros), {}, 10)
    inputs = (
        left,
        _scale(0.02),
        d.constant(5, a),
        right,
        _scale(0.03),
        d.constant(1, b),
        _scale(d.pick((0.5, 5.0))),
        d.constant(7, a),
    )
    return Probe(kind, inputs, {}, 10)


def _integer_conv(d: Draws, kind: str) -> Probe:
    c, m, k = d.pick((1, 3, 8, 16)), d.pick((1, 4, 16)), d.number(1, 3)
    b = d.pick(("int8", "int8", "uint8"))
    x = _numbers(d, (1, c, d.number(k, 9), d.number(k, 9)), "uint8")
    w = _numbers(d, (m, c, k, k), b, constant=True)
    attributes = {"pads": [d.number(0, k - 1) for _ in range(4)], "strides": d.ints(2, 1, 2)}
    if kind == "ConvInteger":
        zeros = [d.constant(3, "uint8")][: d.number(0, 1)]
        return Probe(kind, (x, w, *zeros), attributes, 10)
    inputs = (
        x,
        _scale(0.02),
        d.constant(5, "uint8"),
        w,
        _scale(0.03),
        d.constant(0, b),
        _scale(d.pick((0.5, 5.0))),
        d.constant(7, "uint8"),
    )
    return Probe(kind, inputs, attributes, 10)


FAMILIES = {
    reduction: 8, soft: 4, channel_norm: 4, layer_norm: 4, matmul: 4, gemm: 4, einsum: 2,
    quantized: 6,
}  # fmt: skip
