"""Random operators that compute: windows, products, norms, reductions, element-wise operators."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.operator_cases import CHANNELS, Case, Draw, dims, images, ints, random, shapes


def _window(
    draw: Draw, sizes: tuple[int, ...], *, pool: bool, dilated: bool = True
) -> dict[str, Any]:
    """Kernel, strides, padding and dilations of a window that fits into ``sizes``."""
    rank = len(sizes)
    kernel = [draw(st.integers(1, min(4, s))) for s in sizes]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [*dims(draw, rank, 1, 3)]}
    kind = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if kind != "NOTSET":
        if pool:  # ONNX Runtime refuses strides that skip elements here
            attributes["strides"] = [
                min(s, k) for s, k in zip(attributes["strides"], kernel, strict=True)
            ]
        return {**attributes, "auto_pad": kind}
    if dilated and draw(st.booleans()):
        attributes["dilations"] = [
            draw(st.integers(1, max(1, (s - 1) // max(k - 1, 1))))
            for s, k in zip(sizes, kernel, strict=True)
        ]
    limit = [k - 1 if pool else k + 1 for k in kernel]
    attributes["pads"] = [draw(st.integers(0, most)) for most in limit * 2]
    return attributes


@st.composite
def conv(draw: Draw) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inner, outer = (draw(CHANNELS if groups < 3 else st.integers(1, 3)) for _ in range(2))
    sizes = dims(draw, rank, 3, 8 if rank < 3 else 5)
    window = _window(draw, sizes, pool=False)
    weight = random((groups * outer, inner, *window["kernel_shape"]))
    bias = (random((groups * outer,)),) if draw(st.booleans()) else ()
    shape = (draw(st.integers(1, 2)), groups * inner, *sizes)
    axes = tuple(range(2 + rank))
    return Case("Conv", (shape, weight, *bias), {**window, "group": groups}, axes=axes)


@st.composite
def conv_transpose(draw: Draw) -> Case:
    rank = draw(st.sampled_from([1, 2]))
    groups, inner, outer = draw(st.integers(1, 3)), draw(CHANNELS), draw(CHANNELS)
    sizes = dims(draw, rank, 1, 6)
    kernel, strides = dims(draw, rank, 1, 4), dims(draw, rank, 1, 4)
    attributes = {
        "group": groups,
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dims(draw, rank, 1, 2),
        "pads": [draw(st.integers(0, max(0, (k - 1) // 2))) for k in kernel * 2],
        "output_padding": [draw(st.integers(0, s - 1)) for s in strides],
    }
    weight = random((groups * inner, outer, *kernel))
    bias = (random((groups * outer,)),) if draw(st.booleans()) else ()
    shape = (draw(st.integers(1, 2)), groups * inner, *sizes)
    axes = tuple(range(2 + rank))
    return Case("ConvTranspose", (shape, weight, *bias), attributes, axes=axes)


@st.composite
def pool(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    rank = draw(st.sampled_from([1, 2, 2]))
    sizes = dims(draw, rank, 3, 9)
    opset = draw(st.sampled_from([11, 17, 22] if kind != "LpPool" else [18, 22]))
    dilated = kind != "AveragePool" or opset > 18
    attributes = _window(draw, sizes, pool=True, dilated=dilated)
    if attributes.get("auto_pad", "NOTSET") == "NOTSET":
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    return Case(kind, ((draw(st.integers(1, 2)), draw(CHANNELS), *sizes),), attributes, opset)


_UNARY = ["Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Elu", "Tanh", "Erf", "Sqrt", "Identity"]


@st.composite
def elementwise(draw: Draw) -> Case:
    shape = shapes(draw)
    axes = tuple(range(len(shape)))
    return Case(draw(st.sampled_from(_UNARY)), (shape,), axes=axes)


@st.composite
def broadcast(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["Add", "Mul", "Div", "Pow", "Sum", "Max", "Where", "PRelu"]))
    shape = shapes(draw)
    axes = tuple(range(len(shape)))

    def other() -> tuple[int, ...]:
        thin = tuple(draw(st.sampled_from([1, d])) for d in shape)
        return thin[draw(st.integers(0, len(shape))) :]

    if kind == "Where":
        return Case(kind, (other(), shape, other()), dtypes={0: "bool"}, axes=axes)
    second = other()
    if kind == "Pow":  # of positive numbers, or by a whole number
        exponents = st.sampled_from([np.array(2), np.full(second, 3), np.float32(0.5)])
        exponent = draw(exponents)
        base = abs(random(shape)) if exponent.dtype == np.float32 else shape
        return Case(kind, (base, exponent), axes=axes)
    constant = draw(st.booleans())
    return Case(kind, (shape, random(second) if constant else second), axes=axes)


@st.composite
def clip(draw: Draw) -> Case:
    low, high = (np.array(v, np.float32) for v in (-0.5, 0.5))
    bounds = draw(st.sampled_from([(low,), (low, high), (None, high)]))
    shape = shapes(draw)
    return Case("Clip", (shape, *bounds), axes=tuple(range(len(shape))))


@st.composite
def channel_norm(draw: Draw) -> Case:
    sizes = dims(draw, draw(st.integers(1, 2)), 2, 6)
    shape = (draw(st.integers(1, 2)), draw(CHANNELS), *sizes)
    computed = draw(st.booleans())  # parameters
    vector: Any = shape[1:2] if computed else abs(random(shape[1:2])) + 0.5
    if draw(st.booleans()):
        every = tuple(range(len(shape)))
        return Case("BatchNormalization", (shape, *[vector] * 4), axes=every)
    return Case("InstanceNormalization", (shape, vector, vector), axes=(0, 1))


_AXIS_NORMS = ("LayerNormalization", "RMSNormalization")


@st.composite
def axis_norm(draw: Draw) -> Case:
    shape = shapes(draw, 2)
    axis = draw(st.integers(0, len(shape) - 1))
    kind = draw(st.sampled_from(["Softmax", "LogSoftmax", *_AXIS_NORMS, "LRN"]))
    attributes = {"axis": draw(st.sampled_from([axis, axis - len(shape)]))}
    before = tuple(range(axis))
    if kind == "LRN":
        return Case(kind, ((*shape[:2], 4, 5),), {"size": 3}, axes=(0, 2, 3))
    if kind in _AXIS_NORMS:
        thin = shape[axis:] if draw(st.booleans()) else shape[-1:]
        scale = draw(st.sampled_from([random(thin), thin]))
        if kind == "RMSNormalization":
            return Case(kind, (shape, scale), attributes, 23, axes=before, shape=shape)
        return Case(kind, (shape, scale, scale), attributes, axes=before)
    return Case(kind, (shape,), attributes, draw(st.sampled_from([11, 17])), axes=before)


_REDUCTIONS = [
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
]  # fmt: skip


@st.composite
def reduction(draw: Draw) -> Case:
    shape = shapes(draw, 2)
    kind = draw(st.sampled_from([*_REDUCTIONS, *["ArgMax", "CumSum"] * 2]))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    keep = {"keepdims": draw(st.integers(0, 1))}
    if kind == "ArgMax":
        return Case(kind, (shape,), {"axis": axis, **keep})
    if kind == "CumSum":
        other_axes = tuple(i for i in range(len(shape)) if i != axis % len(shape))
        return Case(kind, (shape, np.array(axis)), {"reverse": 1}, axes=other_axes)
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    if kind == "ReduceSum" or draw(st.booleans()):
        return Case(kind, (shape, ints(*axes)), keep, 18)
    return Case(kind, (shape,), {"axes": axes, **keep})


@st.composite
def global_pool(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"]))
    return Case(kind, (images(draw),), axes=(0, 1))


@st.composite
def gemm(draw: Draw) -> Case:
    m, n, k = dims(draw, 3)
    turned = {"transA": draw(st.integers(0, 1)), "transB": draw(st.integers(0, 1))}
    a = (k, m) if turned["transA"] else (m, k)
    b = (n, k) if turned["transB"] else (k, n)
    c = draw(st.sampled_from([None, (), (n,), (m, 1), (1, n), (m, n)]))
    bias = () if c is None else (random(c),)
    second = random(b) if draw(st.booleans()) else b
    return Case("Gemm", (a, second, *bias), {**turned, "alpha": 0.5}, axes=(0, 1))


@st.composite
def matmul(draw: Draw) -> Case:
    m, n, k = dims(draw, 3)
    batch = dims(draw, 2, 1, 3)

    def side(matrix: tuple[int, ...], vector: tuple[int, ...]) -> tuple[int, ...]:
        thin = tuple(draw(st.sampled_from([1, d])) for d in batch)
        shapes = [matrix, vector, (*batch[1:], *matrix), (*thin, *matrix)]
        return shapes[draw(st.integers(0, 3))]

    b = side((k, n), (k,))
    return Case("MatMul", (side((m, k), (k,)), random(b) if draw(st.booleans()) else b))


@st.composite
def gather(draw: Draw) -> Case:
    shape = dims(draw, draw(st.integers(1, 3)), 2, 5)
    axis = draw(st.integers(0, len(shape) - 1))
    indices = np.arange(-2, 2).reshape(draw(st.sampled_from([(4,), (2, 2), (1, 4)])))
    data = random(shape) if draw(st.booleans()) else shape
    return Case("Gather", (data, indices % 2 - 1), {"axis": axis})


@st.composite
def quantize(draw: Draw) -> Case:
    shape = dims(draw, 3)
    if draw(st.booleans()):
        scale, zero = np.array(0.1, np.float32), np.array(3, np.uint8)
        return Case("QuantizeLinear", (shape, scale, zero), axes=(0, 1, 2))
    axis = draw(st.integers(0, 2))
    scale = abs(random((shape[axis],))) + 0.1
    zero = np.arange(shape[axis], dtype=np.uint8)
    return Case("QuantizeLinear", (shape, scale, zero), {"axis": axis}, axes=(0, 1, 2))


@st.composite
def rare(draw: Draw) -> Case:
    shape = (*dims(draw, 1, 1, 3), 4, *dims(draw, 2, 1, 4))
    vector, every = abs(random((4,))) + 0.5, (0, 1, 2, 3)
    cases = [
        Case("DequantizeLinear", (shape, vector), opset=19, dtypes={0: "uint8"}, axes=every),
        Case("Dropout", (shape, np.array(0.5, np.float32)), axes=every),
        Case("LpNormalization", (shape,), {"axis": 2}, axes=(0, 1, 3)),
        Case("GlobalLpPool", (shape,), axes=(0, 1)),
    ]
    return cases[draw(st.integers(0, len(cases) - 1))]


FAMILIES = {
    f.__name__: f()
    for f in (
        conv,
        conv_transpose,
        pool,
        elementwise,
        broadcast,
        clip,
        channel_norm,
        axis_norm,
        reduction,
        global_pool,
        gemm,
        matmul,
        gather,
        quantize,
        rare,
    )
}
