"""Hostile values, family by family: NaN and infinity in the same places as ONNX Runtime has them,
integers that overflow as its own do, and what is refused.

A model holds many operators, as most of the time goes into compiling kernels. ONNX Runtime is asked
as users ask it, with all its optimisations: its pools depend on them where NaN is among numbers.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from coexec.engines.base import OpenEngine
from tests.helpers.hostile import (
    FLOATS,
    Array,
    Hostile,
    answers_of_ort,
    differences,
    integers,
    laid_out,
    mixed,
    one_model,
    refused,
)

pytest.importorskip("pyopencl")

from tests.helpers.opencl_programs import compute, on_cpu

Devices = dict[str, OpenEngine]

LOWEST = np.finfo(np.float32).min


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devices]:
    binaries = tmp_path_factory.mktemp("binaries")
    opened = {kind: on_cpu(binaries, as_gpu=kind == "gpu") for kind in ("cpu", "gpu")}
    yield opened
    for device in opened.values():
        device.close()


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


IMAGES, OTHERS = (laid_out(FLOATS, (2, 20, 3, 4), seed) for seed in (0, 1))
ROWS, BESIDE = (laid_out(FLOATS, (3, 70), seed) for seed in (2, 3))
NONE, ENDLESS = [np.nan], [np.inf, -np.inf]


def _functions(x: Array, few: bool = False) -> list[Hostile]:
    names = "Relu HardSigmoid HardSwish Softplus Log Sqrt Sign Round Elu Erf"
    if not few:
        names += """ LeakyRelu Celu Selu ThresholdedRelu Shrink Sigmoid Mish Softsign Tanh Exp
            Reciprocal Floor Ceil Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Neg Abs
            IsNaN IsInf"""
    return [Hostile(name, (x,)) for name in names.split()]


def _of_two(x: Array, y: Array, few: bool = False) -> list[Hostile]:
    names = "Max Min PRelu Pow Div Greater" + ("" if few else " Add Sub Mul Equal Less Mean")
    low, high = np.float32(-1), np.float32(2)
    found = [
        *(Hostile(name, (x, y)) for name in names.split()),
        Hostile("Mod", (x, y), {"fmod": 1}),
        Hostile("Clip", (x, np.array(low), np.array(high)), {}, (1, 2)),
        Hostile("Clip", (x, None, np.array(high)), {}, (2,)),
        *(Hostile("Cast", (x,), {"to": to}) for to in (3, 6)),
    ]
    return (
        found
        if few
        else [
            *found,
            Hostile("Max", (x, y, x)),
            Hostile("Where", (x > 0, x, y)),
            Hostile("Clip", (x, np.array(low))),
            Hostile("Clip", (x, np.array(np.float32(np.nan)), np.array(high)), {}, (1, 2)),
            *(Hostile("Cast", (x,), {"to": to}) for to in (2, 7, 9)),  # not to unsigned 32 bits
        ]
    )


def _maxima(values: Sequence[float], *counts: int) -> list[Hostile]:
    """Images of so many channels, which ONNX Runtime pools in blocks, or not; without padding."""
    found = []
    for channels in counts:
        x = mixed((2, channels, 5, 8), values, channels)
        found += [
            Hostile("MaxPool", (x,), {"kernel_shape": [3, 3], "strides": [2, 2]}),
            Hostile("MaxPool", (x,), {"kernel_shape": [2, 3]}, (), 2),
            Hostile("GlobalMaxPool", (x,)),
            Hostile("ReduceMax", (x, ints(2, 3)), {}, (1,)),
            Hostile("ReduceMin", (x, ints(3)), {"keepdims": 0}, (1,)),
            Hostile("ReduceMax", (x, ints(1)), {}, (1,)),
            Hostile("Hardmax", (x,), {"axis": 1}),
            Hostile("ArgMin", (x,), {"axis": 1}),
        ]
    return found


def _rows(values: Sequence[float]) -> list[Hostile]:
    x = mixed((6, 70), values)
    x[2:4] = [[values[-1]], [values[0]]]
    kinds = ["Max", "Min", "LogSumExp", "L2", "Mean", "L1", "Prod", "SumSquare"]
    axis = {"axis": 1}
    return [
        *(Hostile(name, (x,), axis) for name in ("Softmax", "LogSoftmax", "Hardmax", "ArgMax")),
        Hostile("ArgMax", (x,), axis | {"select_last_index": 1}),
        *(Hostile(f"Reduce{kind}", (x, ints(1)), {}, (1,)) for kind in kinds),
        Hostile("ReduceMax", (x, ints(0)), {}, (1,)),
        Hostile("ReduceMax", (x.astype(np.float64), ints(1)), {}, (1,)),
        Hostile("CumSum", (x, np.array(1)), {}, (1,)),
    ]


def _products(values: Sequence[float]) -> list[Hostile]:
    def numbers(*shape: int) -> Array:
        return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)

    x, m, scale = mixed((2, 20, 6, 7), values), mixed((6, 40), values), abs(numbers(20)) + 0.5
    zeros = np.zeros((40, 5), np.float32)
    return [
        Hostile("Conv", (x, numbers(16, 20, 1, 1)), {}, (1,)),
        Hostile("Conv", (x, numbers(20, 1, 3, 3)), {"group": 20}, (1,)),
        Hostile("Conv", (x[:, :3].copy(), numbers(16, 3, 3, 3)), {"strides": [2, 2]}, (1,)),
        Hostile("BatchNormalization", (x, *[scale] * 4), {}, (1, 2, 3, 4)),
        Hostile("InstanceNormalization", (x, scale, scale), {}, (1, 2)),
        Hostile("LayerNormalization", (m, numbers(40), numbers(40)), {}, (1, 2)),
        Hostile("LpNormalization", (m,), {"axis": 1}),
        Hostile("MeanVarianceNormalization", (np.zeros_like(m),), {"axes": [1]}),
        Hostile("MatMul", (m, zeros), {}, (1,)),
        Hostile("MatMul", (numbers(5, 6), m)),
        Hostile("Gemm", (m, numbers(5, 40)), {"transB": 1}, (1,)),
        Hostile("Gemm", (numbers(5, 40), numbers(40, 6), m[:1, :6].copy()), {"beta": 0.0}, (1,)),
        Hostile("AveragePool", (x,), {"kernel_shape": [3, 3], "pads": [1] * 4}),
        Hostile("GlobalAveragePool", (x,)),
    ]


def _integers(dtype: str, few: bool = False) -> list[Hostile]:
    values = integers(dtype)
    x, y = (laid_out(values, (4, 3, 40), seed) for seed in (0, 1))
    divisor = np.where(y == 0, np.array(1, dtype), y)
    small = np.arange(x.size).reshape(x.shape) % 7
    low, high = np.array(values[1]), np.array(5, dtype)
    # ONNX Runtime adds int64 as floats, in an order of its own: the engine refuses those tasks.
    sums = [
        *(Hostile(f"Reduce{kind}", (x, ints(2)), {}, (1,)) for kind in ("Sum", "L1", "SumSquare")),
        Hostile("ReduceMean", (x, ints(0)), {}, (1,)),
        Hostile("ReduceMean", (np.full((2, 3000), 2**29, dtype), ints(1)), {}, (1,)),
    ]
    found = [
        *(Hostile(name, (x, divisor)) for name in ("Div", "Mod")),
        Hostile("Pow", (x, small.astype(dtype))),
        *(sums if dtype == "int32" else []),
    ]
    return (
        found
        if few
        else [
            *found,
            *(Hostile(name, (x, y)) for name in ("Add", "Mul", "Max", "Less")),
            Hostile("Mod", (x, divisor), {"fmod": 1}),
            *(Hostile(name, (x,)) for name in ("Neg", "Abs", "Sign")),
            *([Hostile("Relu", (x,))] if dtype == "int32" else []),
            Hostile("Clip", (x, low, high), {}, (1, 2)),
            Hostile("Pow", (x, small.astype(np.float32) / 2)),
            Hostile("CumSum", (x, np.array(2)), {}, (1,)),
            *(Hostile(f"Reduce{kind}", (x, ints(2)), {}, (1,)) for kind in ("Max", "Min")),
            *(Hostile("Cast", (x,), {"to": to}) for to in (1, 2, 3, 9)),
        ]
    )


def _bytes() -> list[Hostile]:
    u, i = (laid_out(integers(dtype), (2, 4, 8, 8)) for dtype in ("uint8", "int8"))
    by = (np.arange(u.size) % 40).astype(np.uint8).reshape(u.shape)
    return [
        *(Hostile("BitShift", (u, by), {"direction": to}) for to in ("LEFT", "RIGHT")),
        Hostile("MaxPool", (u,), {"kernel_shape": [3, 3]}),
        Hostile("MaxPool", (i,), {"kernel_shape": [3, 3], "pads": [1] * 4}),
        Hostile("Mod", (i, np.where(i == 0, np.int8(1), i))),
        Hostile("Mul", (u, u)),
    ]


FAMILIES = {
    "functions": _functions(ROWS, few=True),
    "of two": _of_two(IMAGES, OTHERS, few=True),
    "maxima, NaN": _maxima(NONE, 16),
    "rows, NaN": _rows(NONE),
    "int32": _integers("int32", few=True),
}
MORE = {
    "further functions": _functions(ROWS),
    "further of two": _of_two(ROWS, BESIDE),
    "further maxima, NaN": _maxima(NONE, 20, 3),
    "rows, infinity": _rows(ENDLESS),
    "products, NaN": _products(NONE),
    "all of int32": _integers("int32"),
    "bytes": _bytes(),
    "functions of images": _functions(IMAGES),
    "of two images": _of_two(IMAGES, OTHERS),
    "maxima, infinity": _maxima(ENDLESS, 16, 20, 3),
    "products, infinity": _products(ENDLESS),
    "int64": _integers("int64"),
}
OPSET = 21


def wrong(engine: OpenEngine, cases: Sequence[Hostile]) -> list[str]:
    """The cases of which the engine computes something else than ONNX Runtime."""
    model, feeds = one_model(cases, OPSET)
    expected = answers_of_ort(model, feeds)
    found = compute(engine, model, feeds)
    titles = [case.title for case in cases for _ in range(case.outputs)]
    expected = list(map(_with_infinity, found, expected))
    for at, has_nan in _kept_nan(cases).items():
        expected[at] = np.where(has_nan & np.isnan(found[at]), found[at], expected[at])
    told = map(differences, found, expected)
    return [f"{title}: {text}" for title, text in zip(titles, told, strict=True) if text]


def _kept_nan(cases: Sequence[Hostile]) -> dict[int, Array]:
    """By output of a maximum or minimum in which NaN stays, what it reaches: there ONNX Runtime
    forgets some."""
    firsts = itertools.accumulate((case.outputs for case in cases), initial=0)
    found = {}
    for at, case in zip(firsts, cases, strict=False):
        if not _keeps_nan(case):
            continue
        x = case.inputs[0]
        assert x is not None
        kind = case.op_type.replace("Min", "Max")
        ones = np.isnan(x).astype(np.float32)
        counted = replace(case, op_type=kind, inputs=(ones, *case.inputs[1:]), outputs=1)
        (largest,) = answers_of_ort(*one_model([counted], OPSET))
        found[at] = np.asarray(largest == 1)
    return found


def _keeps_nan(case: Hostile) -> bool:
    """Not pools of images in whole blocks of channels, and not what goes along neighbours."""
    x, *more = case.inputs
    assert x is not None
    if case.op_type in ("MaxPool", "GlobalMaxPool"):
        return x.ndim != 4 or x.shape[1] % 16 != 0 or case.outputs > 1
    if case.op_type in ("ReduceMax", "ReduceMin") and more[0] is not None:
        axes = sorted(more[0].tolist())
        return axes != list(range(x.ndim - len(axes), x.ndim))
    return False


def _with_infinity(found: Array, expected: Array) -> Array:
    """Some pools of ONNX Runtime have the lowest finite number in place of -infinity."""
    if expected.dtype != np.float32:
        return expected
    return np.where((expected == LOWEST) & np.isneginf(found), found, expected)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_onnxruntime(devices: Devices, family: str) -> None:
    assert wrong(devices["cpu"], FAMILIES[family]) == []


@pytest.mark.conformance
@pytest.mark.parametrize("family", MORE)
def test_more_as_onnxruntime(devices: Devices, family: str) -> None:
    assert wrong(devices["cpu"], MORE[family]) == []


@pytest.mark.conformance
@pytest.mark.parametrize("family", sorted(FAMILIES | MORE))
def test_as_onnxruntime_on_a_gpu(devices: Devices, family: str) -> None:
    assert wrong(devices["gpu"], (FAMILIES | MORE)[family]) == []


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_rows_with_nan(devices: Devices, kind: str) -> None:
    """Work items of GPUs share long rows."""
    x = mixed((6, 900), NONE)
    cases = [
        Hostile("ReduceMax", (x, ints(1)), {}, (1,)),
        Hostile("Hardmax", (x,), {"axis": 1}),
        Hostile("GlobalMaxPool", (x[None],)),
        Hostile("Softmax", (x,)),
    ]
    assert wrong(devices[kind], cases) == []


def test_numbers_beside_infinity(devices: Devices) -> None:
    """PoCL's functions of vectors take angles below 0.0078 for that then."""
    x = np.full((4, 64), np.inf, np.float32)
    x[:, 1::4], x[:, 3::4] = np.geomspace(-1e-6, -2, 64).reshape(4, 16), -0.0
    cases = [Hostile(name, (x,)) for name in ("Sin", "Cos", "Tan")]
    cases.append(Hostile("Gelu", (-x,), {"approximate": "tanh"}))
    # A third input times 0 is nothing, though it is infinite.
    cases.append(
        Hostile("Gemm", (x[:, 1::4].copy(), np.ones((16, 64), np.float32), x[:1]), {"beta": 0.0})
    )
    assert wrong(devices["cpu"], cases) == []


def test_zeros_keep_their_sign(devices: Devices) -> None:
    """The reciprocals, which are infinite, have the same one."""
    zeros = np.array([0.0, -0.0, 0.3, -0.3, 1e-40, -1e-40, 5, -5], np.float32)
    x, y = np.tile(zeros, 8), np.repeat(zeros, 8)
    names = ["Add", "Sub", "Mul", "Max", "Min", "Relu", "Neg", "Abs", "Sign", "Round", "Ceil"]
    cases = [Hostile(n, (x, y) if i < 5 else (x,)) for i, n in enumerate(names)]
    model, feeds = one_model(cases, OPSET, behind="Reciprocal")
    found = compute(devices["cpu"], model, feeds)
    told = map(differences, found, answers_of_ort(model, feeds))
    assert [f"{n}: {text}" for n, text in zip(names, told, strict=True) if text] == []


@pytest.mark.parametrize("values", [NONE, ENDLESS])
def test_winograds_convolution_loses_none(devices: Devices, values: Sequence[float]) -> None:
    """It may spread NaN and infinity, as NaN, over the tile that they are in, and no further."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 64, 40, 40)).astype(np.float32)
    x[0, [3, 40], [0, 20], [8, 21]] = values[0], values[-1]
    w = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float32)
    model, feeds = one_model([Hostile("Conv", (x, w), {"pads": [1] * 4}, (1,))], OPSET)
    (expected,), (found,) = answers_of_ort(model, feeds), compute(devices["cpu"], model, feeds)
    missing = ~np.isfinite(expected) & np.isfinite(found)
    more = np.isfinite(expected) & ~np.isfinite(found)
    assert not missing.any()
    assert more.sum() <= 2 * 64 * 2 * 8 * 8
    usual = np.isfinite(expected) & np.isfinite(found)
    np.testing.assert_allclose(found[usual], expected[usual], rtol=1e-3, atol=1e-3)


def test_norms_of_channels_follow_the_definition(devices: Devices) -> None:
    """ONNX Runtime's LRN carries a NaN of one window on to those behind it; NumPy is right."""
    x = mixed((2, 20, 3, 4), NONE)
    model, feeds = one_model([Hostile("LRN", (x,), {"size": 3})], OPSET)
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    sums = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    expected = x / (1 + 1e-4 / 3 * sums) ** 0.75
    assert differences(*compute(devices["cpu"], model, feeds), expected) == ""


def test_nan_is_not_lost_at_the_border(devices: Devices) -> None:
    """ONNX Runtime's maximum of a window of NaN that reaches over the last column is finite."""
    x = np.full((1, 3, 4, 8), np.nan, np.float32)
    case = Hostile("MaxPool", (x,), {"kernel_shape": [2, 2], "pads": [1] * 4})
    model, feeds = one_model([case], OPSET)
    assert np.isnan(compute(devices["cpu"], model, feeds)[0]).all()


EMPTY, ONES = np.ones((0, 3), np.float32), np.ones((4, 3), np.float32)
NOWHERE = np.zeros((0,), np.int64)


@pytest.mark.parametrize(
    "case",
    [
        Hostile("Relu", (EMPTY,)),
        Hostile("Add", (EMPTY, ONES[0])),
        Hostile("Concat", (EMPTY, ONES), {"axis": 0}),
        Hostile("ReduceSum", (EMPTY, ints(0)), {}, (1,)),
        Hostile("ReduceMax", (EMPTY, ints(0)), {}, (1,)),
        Hostile("MatMul", (EMPTY.T, EMPTY)),
        Hostile("Gemm", (EMPTY, ONES[:3])),
        Hostile("Gather", (ONES, NOWHERE)),
        Hostile("Gather", (EMPTY, NOWHERE)),
        Hostile("Transpose", (EMPTY,)),
        Hostile("Softmax", (EMPTY.T,)),
        Hostile("Expand", (ONES[:1], ints(0, 3)), {}, (1,)),
        Hostile("MaxPool", (np.ones((0, 3, 4, 4), np.float32),), {"kernel_shape": [2, 2]}),
        Hostile("ScatterND", (ONES, np.zeros((0, 1), np.int64), EMPTY)),
        Hostile("CumSum", (EMPTY, np.array(0)), {}, (1,)),
    ],
    ids=lambda case: case.op_type,
)
def test_empty_tensors_are_refused(devices: Devices, case: Hostile) -> None:
    reason = refused(devices["cpu"], case, OPSET)
    assert reason == f"{case.op_type} of an empty tensor"


def test_empty_constants(devices: Devices) -> None:
    keep = {"noop_with_empty_axes": 1}
    nothing = np.zeros((0,), np.int64)
    cases = [
        Hostile("Concat", (ONES, EMPTY), {"axis": 0}, (1,)),
        Hostile("ScatterND", (ONES, np.zeros((0, 1), np.int64), EMPTY), {}, (1, 2)),
        Hostile("ScatterElements", (ONES, np.zeros((0, 3), np.int64), EMPTY), {}, (1, 2)),
        Hostile("ReduceSum", (ONES, nothing), {}, (1,)),
        *(
            Hostile(f"Reduce{kind}", (-2 * ONES, nothing), keep, (1,))
            for kind in ("Sum", "Max", "L1", "SumSquare")
        ),
        Hostile("OneHot", (ints(9, -9, -1, 2), np.array(3), np.float32([0, 1])), {}, (1,)),
    ]
    assert wrong(devices["cpu"], cases) == []


def test_the_mean_of_many_integers(devices: Devices) -> None:
    """Their sum does not fit."""
    x = np.full((1, 500, 1000), 5000, np.int32)
    assert wrong(devices["cpu"], [Hostile("ReduceMean", (x, ints(1, 2)), {}, (1,))]) == []
