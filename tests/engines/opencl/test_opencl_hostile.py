"""Rare values, family by family: zeros of both signs, denormals, results that overflow, integers
that overflow as ONNX Runtime's own do, and what is refused.

A model holds many operators, as most of the time goes into compiling kernels.
"""

from collections.abc import Iterator, Sequence

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
    one_model,
    refused,
)

pytest.importorskip("pyopencl")

from tests.helpers.opencl_programs import compute, on_cpu

Devices = dict[str, OpenEngine]


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
            *(Hostile("Cast", (x,), {"to": to}) for to in (2, 7, 9)),  # not to unsigned 32 bits
        ]
    )


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
    "int32": _integers("int32", few=True),
}
MORE = {
    "further functions": _functions(ROWS),
    "further of two": _of_two(ROWS, BESIDE),
    "all of int32": _integers("int32"),
    "bytes": _bytes(),
    "functions of images": _functions(IMAGES),
    "of two images": _of_two(IMAGES, OTHERS),
    "int64": _integers("int64"),
}
OPSET = 21


def wrong(engine: OpenEngine, cases: Sequence[Hostile]) -> list[str]:
    """The cases of which the engine computes something else than ONNX Runtime."""
    model, feeds = one_model(cases, OPSET)
    expected = answers_of_ort(model, feeds)
    found = compute(engine, model, feeds)
    titles = [case.title for case in cases for _ in range(case.outputs)]
    told = map(differences, found, expected)
    return [f"{title}: {text}" for title, text in zip(titles, told, strict=True) if text]


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
