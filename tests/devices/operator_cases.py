"""Random single operators, one strategy a family, for every splitting rule."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Case:
    """One node. Inputs are shapes of activations, arrays (constants) or None (absent)."""

    op_type: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    dtypes: dict[int, str] = field(default_factory=dict)
    axes: tuple[int, ...] | None = None
    """What must be splittable, among the axes longer than 1; None if anything goes."""


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def _dims(draw: Draw, rank: int, low: int = 1, high: int = 6) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(rank))


def _window(
    draw: Draw, sizes: tuple[int, ...], *, pool: bool, dilated: bool = True
) -> dict[str, Any]:
    """Kernel, strides, padding and dilations that fit on ``sizes``."""
    rank = len(sizes)
    kernel = [draw(st.integers(1, min(4, s))) for s in sizes]
    found: dict[str, Any] = {"kernel_shape": kernel, "strides": [*_dims(draw, rank, 1, 3)]}
    kind = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if kind != "NOTSET":
        if pool:  # ONNX Runtime refuses strides that skip elements here
            found["strides"] = [min(s, k) for s, k in zip(found["strides"], kernel, strict=True)]
        return {**found, "auto_pad": kind}
    if dilated and draw(st.booleans()):
        found["dilations"] = [
            draw(st.integers(1, max(1, (s - 1) // max(k - 1, 1))))
            for s, k in zip(sizes, kernel, strict=True)
        ]
    limit = [k - 1 if pool else k + 1 for k in kernel]
    found["pads"] = [draw(st.integers(0, most)) for most in limit * 2]
    return found


@st.composite
def conv(draw: Draw) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    groups, inner, outer = (draw(st.integers(1, 3)) for _ in range(3))
    sizes = _dims(draw, rank, 3, 8 if rank < 3 else 5)
    window = _window(draw, sizes, pool=False)
    weight = _random((groups * outer, inner, *window["kernel_shape"]))
    bias = (_random((groups * outer,)),) if draw(st.booleans()) else ()
    shape = (draw(st.integers(1, 2)), groups * inner, *sizes)
    axes = tuple(range(2 + rank))
    return Case("Conv", (shape, weight, *bias), {**window, "group": groups}, axes=axes)


@st.composite
def conv_transpose(draw: Draw) -> Case:
    rank = draw(st.sampled_from([1, 2]))
    groups, inner, outer = (draw(st.integers(1, 3)) for _ in range(3))
    sizes = _dims(draw, rank, 1, 6)
    kernel, strides = _dims(draw, rank, 1, 4), _dims(draw, rank, 1, 4)
    attributes = {
        "group": groups, "kernel_shape": kernel, "strides": strides,
        "dilations": _dims(draw, rank, 1, 2),
        "pads": [draw(st.integers(0, max(0, (k - 1) // 2))) for k in kernel * 2],
        "output_padding": [draw(st.integers(0, s - 1)) for s in strides],
    }  # fmt: skip
    weight = _random((groups * inner, outer, *kernel))
    bias = (_random((groups * outer,)),) if draw(st.booleans()) else ()
    shape = (draw(st.integers(1, 2)), groups * inner, *sizes)
    axes = tuple(range(2 + rank))
    return Case("ConvTranspose", (shape, weight, *bias), attributes, axes=axes)


@st.composite
def pool(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    rank = draw(st.sampled_from([1, 2, 2]))
    sizes = _dims(draw, rank, 3, 9)
    opset = draw(st.sampled_from([11, 17, 22] if kind != "LpPool" else [18, 22]))
    dilated = kind != "AveragePool" or opset > 18
    attributes = _window(draw, sizes, pool=True, dilated=dilated)
    if attributes.get("auto_pad", "NOTSET") == "NOTSET":
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    return Case(kind, ((*_dims(draw, 2, 1, 3), *sizes),), attributes, opset)


_UNARY = ["Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Elu", "Tanh", "Erf", "Sqrt", "Identity"]


@st.composite
def elementwise(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(1, 4)))
    axes = tuple(range(len(shape)))
    return Case(draw(st.sampled_from(_UNARY)), (shape,), axes=axes)


@st.composite
def broadcast(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["Add", "Mul", "Sub", "Pow", "Sum", "Max", "Where", "PRelu"]))
    shape = _dims(draw, draw(st.integers(1, 4)))
    axes = tuple(range(len(shape)))

    def other() -> tuple[int, ...]:
        thin = tuple(draw(st.sampled_from([1, d])) for d in shape)
        return thin[draw(st.integers(0, len(shape))) :]

    if kind == "Where":
        return Case(kind, (other(), shape, other()), dtypes={0: "bool"}, axes=axes)
    second = other()
    constant = draw(st.booleans())
    return Case(kind, (shape, _random(second) if constant else second), axes=axes)


@st.composite
def clip(draw: Draw) -> Case:
    low, high = (np.array(v, np.float32) for v in (-0.5, 0.5))
    bounds = draw(st.sampled_from([(low,), (low, high), (None, high)]))
    return Case("Clip", (_dims(draw, 3), *bounds), axes=(0, 1, 2))


@st.composite
def channel_norm(draw: Draw) -> Case:
    shape = (*_dims(draw, 2, 1, 5), *_dims(draw, draw(st.integers(1, 2)), 2, 6))
    vector = abs(_random((shape[1],))) + 0.5
    if draw(st.booleans()):
        every = tuple(range(len(shape)))
        return Case("BatchNormalization", (shape, *[vector] * 4), axes=every)
    return Case("InstanceNormalization", (shape, vector, vector), axes=(0, 1))


@st.composite
def axis_norm(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(2, 4)))
    axis = draw(st.integers(0, len(shape) - 1))
    kind = draw(st.sampled_from(["Softmax", "LogSoftmax", "LayerNormalization", "LRN"]))
    given = {"axis": draw(st.sampled_from([axis, axis - len(shape)]))}
    before = tuple(range(axis))
    if kind == "LRN":
        return Case(kind, ((*shape[:2], 4, 5),), {"size": 3}, axes=(0, 2, 3))
    if kind == "LayerNormalization":
        scale = _random(shape[axis:])
        return Case(kind, (shape, scale, scale), given, axes=before)
    return Case(kind, (shape,), given, draw(st.sampled_from([11, 17])), axes=before)


@st.composite
def reduction(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(2, 4)))
    kind = draw(st.sampled_from(["ReduceMean", "ReduceSum", "ReduceMax", "ArgMax", "CumSum"]))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    keep = {"keepdims": draw(st.integers(0, 1))}
    if kind == "ArgMax":
        return Case(kind, (shape,), {"axis": axis, **keep})
    if kind == "CumSum":
        others = tuple(i for i in range(len(shape)) if i != axis % len(shape))
        return Case(kind, (shape, np.array(axis)), {"reverse": 1}, axes=others)
    if kind == "ReduceSum":
        return Case(kind, (shape, ints(axis)), keep)
    return Case(kind, (shape,), {"axes": [axis], **keep})


@st.composite
def global_pool(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"]))
    return Case(kind, (_dims(draw, 4),), axes=(0, 1))


@st.composite
def concat(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(1, 4)))
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = _dims(draw, draw(st.integers(1, 4)))
    inputs = tuple((*shape[:axis], s, *shape[axis + 1 :]) for s in sizes)
    return Case("Concat", inputs, {"axis": axis}, axes=tuple(range(len(shape))))


@st.composite
def slice_(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(1, 4)), 2, 8)
    picked = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))]
    starts, ends, steps = [], [], []
    for axis in picked:
        step = draw(st.sampled_from([1, 2, 3, -1, -2]))
        low = draw(st.integers(0, shape[axis] - 1))
        high = draw(st.integers(low + 1, shape[axis] + 3))
        backwards = (high - 1, low - 1 if low else -100)
        start, end = (low, high) if step > 0 else backwards
        shift = shape[axis] if step > 0 and draw(st.booleans()) else 0
        starts.append(start - shift)
        ends.append(end)
        steps.append(step)
    kind = draw(st.sampled_from([np.int64, np.int32]))
    values = (np.array(v, kind) for v in (starts, ends, picked, steps))
    return Case("Slice", (shape, *values), axes=tuple(range(len(shape))))


@st.composite
def pad(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(1, 4)), 2, 6)
    mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
    low = -1 if mode == "constant" else 0
    pads = [draw(st.integers(low, s - 1 if mode == "reflect" else 4)) for s in shape * 2]
    sizes = [s + a + b for s, a, b in zip(shape, pads, pads[len(shape) :], strict=False)]
    pads = pads if min(sizes) > 0 else [abs(p) for p in pads]
    value = (np.array(2.5, np.float32),) if mode == "constant" and draw(st.booleans()) else ()
    return Case("Pad", (shape, ints(*pads), *value), {"mode": mode})


@st.composite
def resize(draw: Draw) -> Case:
    shape = (*_dims(draw, 2, 1, 3), *_dims(draw, 2, 1, 5))
    scale = (1, 1, *_dims(draw, 2, 1, 4))
    attributes = {
        "mode": draw(st.sampled_from(["nearest", "linear"])),
        "coordinate_transformation_mode": draw(
            st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
        ),
        "nearest_mode": draw(
            st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
        ),
    }
    if draw(st.booleans()):
        sizes = [s * f for s, f in zip(shape, scale, strict=True)]
        return Case("Resize", (shape, None, None, ints(*sizes)), attributes)
    return Case("Resize", (shape, None, np.array(scale, np.float32)), attributes)


@st.composite
def old_upsample(draw: Draw) -> Case:
    shape = (*_dims(draw, 2, 1, 3), *_dims(draw, 2, 1, 5))
    scale = np.array((1, 1, *_dims(draw, 2, 1, 3)), np.float32)
    mode = {"mode": draw(st.sampled_from(["nearest", "linear"]))}
    kind, opset = draw(st.sampled_from([("Upsample", 9), ("Resize", 10)]))
    return Case(kind, (shape, scale), mode, opset, axes=(0, 1, 2, 3))


@st.composite
def transpose(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(1, 4)))
    perm = draw(st.permutations(range(len(shape))))
    attributes = {"perm": perm} if draw(st.booleans()) else {}
    return Case("Transpose", (shape,), attributes, axes=tuple(range(len(shape))))


@st.composite
def reshape(draw: Draw) -> Case:
    """Both shapes are groupings of the same factors."""
    factors = _dims(draw, draw(st.integers(1, 5)), 1, 4)

    def grouped() -> tuple[int, ...]:
        shape = [1]
        for factor in factors:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        return tuple(shape)

    return Case("Reshape", (grouped(), ints(*grouped())))


@st.composite
def squeeze(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["Squeeze", "Unsqueeze", "Flatten"]))
    if kind == "Squeeze":
        a, b = _dims(draw, 2)
        return Case(kind, ((a, 1, b, 1), ints(1, 3)), axes=(0, 1))
    if kind == "Unsqueeze":
        return Case(kind, (_dims(draw, 2), ints(0, -1)), axes=(1, 2))
    shape = draw(st.sampled_from([(3, 4, 1, 1), (1, 4, 1, 3), (2, 3, 4, 1), (4, 1, 1, 5)]))
    return Case(kind, (shape,), {"axis": draw(st.integers(0, 4))})


@st.composite
def repeat(draw: Draw) -> Case:
    shape = _dims(draw, 3, 1, 3)
    counts = tuple(draw(st.sampled_from([1, 1, 2])) for _ in shape)
    if draw(st.booleans()):
        return Case("Tile", (shape, ints(*counts)))
    target = tuple(draw(st.sampled_from([1, d])) if d > 1 else 3 for d in (*shape, 1))
    return Case("Expand", ((*shape, 1), ints(2, *target)), axes=(0, 1, 2, 3, 4))


@st.composite
def space_depth(draw: Draw) -> Case:
    size = draw(st.integers(1, 3))
    batch, channels, height, width = _dims(draw, 4, 1, 3)
    if draw(st.booleans()):
        shape = (batch, channels, height * size, width * size)
        return Case("SpaceToDepth", (shape,), {"blocksize": size}, axes=(0, 2, 3))
    mode = draw(st.sampled_from(["DCR", "CRD"]))
    shape = (batch, channels * size**2, height, width)
    return Case("DepthToSpace", (shape,), {"blocksize": size, "mode": mode}, axes=(0, 2, 3))


@st.composite
def gemm(draw: Draw) -> Case:
    m, n, k = _dims(draw, 3)
    turned = {"transA": draw(st.integers(0, 1)), "transB": draw(st.integers(0, 1))}
    a = (k, m) if turned["transA"] else (m, k)
    b = (n, k) if turned["transB"] else (k, n)
    c = draw(st.sampled_from([None, (), (n,), (m, 1), (1, n), (m, n)]))
    bias = () if c is None else (_random(c),)
    second = _random(b) if draw(st.booleans()) else b
    return Case("Gemm", (a, second, *bias), {**turned, "alpha": 0.5}, axes=(0, 1))


@st.composite
def matmul(draw: Draw) -> Case:
    m, n, k = _dims(draw, 3)
    batch = _dims(draw, 2, 1, 3)

    def side(matrix: tuple[int, ...], vector: tuple[int, ...]) -> tuple[int, ...]:
        thin = tuple(draw(st.sampled_from([1, d])) for d in batch)
        return draw(st.sampled_from([matrix, vector, (*batch[1:], *matrix), (*thin, *matrix)]))

    b = side((k, n), (k,))
    return Case("MatMul", (side((m, k), (k,)), _random(b) if draw(st.booleans()) else b))


@st.composite
def gather(draw: Draw) -> Case:
    shape = _dims(draw, draw(st.integers(1, 3)), 2, 5)
    axis = draw(st.integers(0, len(shape) - 1))
    indices = np.arange(-2, 2).reshape(draw(st.sampled_from([(4,), (2, 2), (1, 4)])))
    data = _random(shape) if draw(st.booleans()) else shape
    return Case("Gather", (data, indices % 2 - 1), {"axis": axis})


@st.composite
def quantize(draw: Draw) -> Case:
    shape = _dims(draw, 3)
    if draw(st.booleans()):
        scale, zero = np.array(0.1, np.float32), np.array(3, np.uint8)
        return Case("QuantizeLinear", (shape, scale, zero), axes=(0, 1, 2))
    axis = draw(st.integers(0, 2))
    scale = abs(_random((shape[axis],))) + 0.1
    zero = np.arange(shape[axis], dtype=np.uint8)
    return Case("QuantizeLinear", (shape, scale, zero), {"axis": axis}, axes=(0, 1, 2))


@st.composite
def rare(draw: Draw) -> Case:
    shape = (*_dims(draw, 1, 1, 3), 4, *_dims(draw, 2, 1, 4))
    vector, every = abs(_random((4,))) + 0.5, (0, 1, 2, 3)
    return draw(
        st.sampled_from(
            [
                Case(
                    "DequantizeLinear", (shape, vector), opset=19, dtypes={0: "uint8"}, axes=every
                ),
                Case("Dropout", (shape, np.array(0.5, np.float32)), axes=every),
                Case("LpNormalization", (shape,), {"axis": 2}, axes=(0, 1, 3)),
                Case("MeanVarianceNormalization", (shape,), {"axes": [1, 3]}, axes=(0, 2)),
                Case("GlobalLpPool", (shape,), axes=(0, 1)),
            ]
        )
    )


FAMILIES = {f.__name__: f() for f in (
    conv, conv_transpose, pool, elementwise, broadcast, clip, channel_norm, axis_norm, reduction,
    global_pool, concat, slice_, pad, resize, old_upsample, transpose, reshape, squeeze, repeat,
    space_depth, gemm, matmul, gather, quantize, rare)}  # fmt: skip
