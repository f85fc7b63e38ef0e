"""Rare values, family by family: zeros of both signs, denormals, results that overflow, integers,
and what is refused.

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
            Reciprocal Floor Ceil Sin Cos Neg Abs"""
    return [Hostile(name, (x,)) for name in names.split()]


def _of_two(x: Array, y: Array, few: bool = False) -> list[Hostile]:
    names = "Max Min PRelu Pow Div Greater" + ("" if few else " Add Sub Mul Equal Less Mean")
    low, high = np.float32(-1), np.float32(2)
    found = [
        *(Hostile(name, (x, y)) for name in names.split()),
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


def _integers(dtype: str) -> list[Hostile]:
    values = integers(dtype)
    x, y = (laid_out(values, (4, 3, 40), seed) for seed in (0, 1))
    low, high = np.array(values[1]), np.array(5, dtype)
    return [
        *(Hostile(name, (x, y)) for name in ("Add", "Mul", "Max", "Less")),
        *(Hostile(name, (x,)) for name in ("Neg", "Abs", "Sign")),
        *([Hostile("Relu", (x,))] if dtype == "int32" else []),
        Hostile("Clip", (x, low, high), {}, (1, 2)),
        *(Hostile("Cast", (x,), {"to": to}) for to in (1, 2, 3, 9)),
    ]


FAMILIES = {
    "functions": _functions(ROWS, few=True),
    "of two": _of_two(IMAGES, OTHERS, few=True),
    "int32": _integers("int32"),
}
MORE = {
    "further functions": _functions(ROWS),
    "further of two": _of_two(ROWS, BESIDE),
    "uint8": _integers("uint8"),
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


@pytest.mark.parametrize(
    "case",
    [
        Hostile("Relu", (EMPTY,)),
        Hostile("Add", (EMPTY, ONES[0])),
        Hostile("Concat", (EMPTY, ONES), {"axis": 0}),
        Hostile("ReduceSum", (EMPTY, ints(0)), {}, (1,)),
        Hostile("MatMul", (EMPTY.T, EMPTY)),
        Hostile("Gemm", (EMPTY, ONES[:3])),
        Hostile("Gather", (EMPTY, ints(0)), {"axis": 1}, (1,)),
        Hostile("Transpose", (EMPTY,)),
        Hostile("Softmax", (EMPTY.T,)),
        Hostile("Expand", (ONES[:1], ints(0, 3)), {}, (1,)),
        Hostile("MaxPool", (np.ones((0, 3, 4, 4), np.float32),), {"kernel_shape": [2, 2]}),
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
        Hostile("ReduceSum", (ONES, nothing), {}, (1,)),
        *(
            Hostile(f"Reduce{kind}", (-2 * ONES, nothing), keep, (1,))
            for kind in ("Sum", "Max", "L1", "SumSquare")
        ),
    ]
    assert wrong(devices["cpu"], cases) == []
