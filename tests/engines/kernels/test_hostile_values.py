"""Rare values, family by family: zeros of both signs, denormals, results that overflow, integers,
and what is refused.

A model holds many operators, as most of the time goes into compiling kernels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from coexec.engines.base import OpenEngine
from coexec.model.model import Model
from tests.helpers.core_programs import compute, opened_cpp
from tests.helpers.onnx_models import direct, tensor
from tests.helpers.opencl_gpu import opened

Array = np.ndarray[Any, Any]
OPSET = 21

TINY = [-0.0, 0.0, 1e-40, -1e-40, 1.4e-45, 1.2e-38]
USUAL = [1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 3.0, -3.0, 0.1, -0.1, 6.5]
LARGE = [88.7, 89.5, -88.0, -104.0, 1e10, -1e10, 20.0, -20.0]
FLOATS = np.array([*TINY, *USUAL, *LARGE], np.float32)


@dataclass(frozen=True)
class Hostile:
    """One node with its input arrays. Arrays that are not constants are fed."""

    op_type: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    """Numbers of the inputs that are constants of the model."""


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEngine]:
    made = opened_cpp(tmp_path_factory.mktemp("kernels"))
    yield made
    made.close()


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def laid_out(values: Array, shape: Sequence[int], seed: int = 0) -> Array:
    """An array of ``shape`` with ``values``, repeated and in random order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.resize(values, int(np.prod(shape)))).reshape(shape)


def one_model(cases: Sequence[Hostile], behind: str = "") -> tuple[Model, dict[str, Array]]:
    """A model with a node for each case, and its feeds. An array that several cases share is one
    input. ``behind``: an operator that is applied to each output."""
    nodes, ends = [], []
    feeds: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    names: dict[int, str] = {}
    for number, case in enumerate(cases):
        read = []
        for i, array in enumerate(case.inputs):
            constant = i in case.constants
            name = (
                ""
                if array is None
                else names.setdefault(id(array) * 2 + constant, f"x{len(names)}")
            )
            if array is not None:
                (weights if constant else feeds)[name] = array
            read.append(name)
        ends.append(f"y{number}")
        made = f"inside{number}" if behind else ends[-1]
        nodes.append(helper.make_node(case.op_type, read, [made], **case.attributes))
        nodes += [helper.make_node(behind, [made], [ends[-1]])] if behind else []
    inputs = [tensor(name, array.shape, array.dtype.name) for name, array in feeds.items()]
    return direct(nodes, inputs, ends, weights, OPSET), feeds


def answers_of_ort(model: Model, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of ONNX Runtime in a session with default optimisation."""
    proto = ir.to_proto(model.source).SerializeToString()
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, dict(feeds))
    return outputs


def differences(found: Array, expected: Array) -> str:
    """Description of the differences of two results; "" if there are none."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{found.shape} for {expected.dtype}{expected.shape}"
    with np.errstate(all="ignore"):
        alike = found == expected
        if expected.dtype.kind == "f":
            close = np.isclose(found, expected, rtol=1e-4, atol=1e-6)
            alike |= np.isnan(found) & np.isnan(expected)
            alike |= close & np.isfinite(found) & np.isfinite(expected)
    if alike.all():
        return ""
    return f"{int((~alike).sum())} of {alike.size}: {found[~alike][:4]} for {expected[~alike][:4]}"


def wrong(engine: OpenEngine, cases: Sequence[Hostile], behind: str = "") -> list[str]:
    """The cases of which the engine computes something else than ONNX Runtime."""
    model, feeds = one_model(cases, behind)
    found, expected = compute(engine, model, feeds), answers_of_ort(model, feeds)
    told = map(differences, found, expected)
    return [f"{c.op_type}: {text}" for c, text in zip(cases, told, strict=True) if text]


def functions(shape: Sequence[int]) -> list[Hostile]:
    x = laid_out(FLOATS, shape)
    names = """Relu HardSigmoid HardSwish Softplus Log Sqrt Sign Round Elu Erf LeakyRelu Celu Selu
        ThresholdedRelu Shrink Sigmoid Mish Softsign Tanh Exp Reciprocal Floor Ceil Sin Cos Neg
        Abs"""
    return [Hostile(name, (x,)) for name in names.split()]


def of_two(shape: Sequence[int]) -> list[Hostile]:
    x, y = (laid_out(FLOATS, shape, seed) for seed in (0, 1))
    low, high = np.array(-1, np.float32), np.array(2, np.float32)
    names = "Max Min PRelu Pow Div Greater Add Sub Mul Equal Less Mean"
    return [
        *(Hostile(name, (x, y)) for name in names.split()),
        Hostile("Clip", (x, low, high), {}, (1, 2)),
        Hostile("Clip", (x, None, high), {}, (2,)),
        Hostile("Clip", (x, low)),
        Hostile("Max", (x, y, x)),
        Hostile("Where", (x > 0, x, y)),
        *(Hostile("Cast", (x,), {"to": to}) for to in (2, 3, 6, 7, 9)),  # not to unsigned 32 bits
    ]


def of_integers(dtype: str) -> list[Hostile]:
    """The extreme integers of a type, their neighbours, and small integers."""
    limits = np.iinfo(dtype)
    ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2]
    small = [s * v for v in (0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 100) for s in (1, -1)]
    values = np.array([v for v in (*ends, *small) if limits.min <= v <= limits.max], dtype)
    x, y = (laid_out(values, (4, 3, 40), seed) for seed in (0, 1))
    low, high = np.array(values[1]), np.array(5, dtype)
    return [
        *(Hostile(name, (x, y)) for name in ("Add", "Mul", "Max", "Less")),
        *(Hostile(name, (x,)) for name in ("Neg", "Abs", "Sign") if limits.min < 0),
        *([Hostile("Relu", (x,))] if dtype == "int32" else []),
        Hostile("Clip", (x, low, high), {}, (1, 2)),
        *(Hostile("Cast", (x,), {"to": to}) for to in (1, 2, 3, 9)),
    ]


ROWS, IMAGES = (3, 70), (2, 20, 3, 4)
FAMILIES = {
    "functions": functions(ROWS),
    "of two images": of_two(IMAGES),
    "int32": of_integers("int32"),
    "functions of images": functions(IMAGES),
    "of two": of_two(ROWS),
    "uint8": of_integers("uint8"),
    "int64": of_integers("int64"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_onnxruntime(cores: OpenEngine, family: str) -> None:
    assert wrong(cores, FAMILIES[family]) == []


@pytest.mark.conformance
@pytest.mark.parametrize("family", FAMILIES)
def test_as_onnxruntime_on_a_gpu(family: str, tmp_path: Path) -> None:
    assert wrong(opened(tmp_path), FAMILIES[family]) == []


def test_zeros_keep_their_sign(cores: OpenEngine) -> None:
    """The reciprocals, which are infinite, have the same one."""
    zeros = np.array([0.0, -0.0, 0.3, -0.3, 1e-40, -1e-40, 5, -5], np.float32)
    x, y = np.tile(zeros, 8), np.repeat(zeros, 8)
    names = ["Add", "Sub", "Mul", "Max", "Min", "Relu", "Neg", "Abs", "Sign", "Round", "Ceil"]
    cases = [Hostile(n, (x, y) if i < 5 else (x,)) for i, n in enumerate(names)]
    assert wrong(cores, cases, behind="Reciprocal") == []


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
def test_empty_tensors_are_refused(cores: OpenEngine, case: Hostile) -> None:
    graph = one_model([case])[0].graph
    (reason,) = (cores.why_not(task, graph.tensors) for task in graph.tasks)
    assert reason == f"{case.op_type} of an empty tensor"


def test_empty_constants(cores: OpenEngine) -> None:
    keep, nothing = {"noop_with_empty_axes": 1}, np.zeros((0,), np.int64)
    kinds = ("Sum", "Max", "L1", "SumSquare")
    cases = [
        Hostile("Concat", (ONES, EMPTY), {"axis": 0}, (1,)),
        Hostile("ReduceSum", (ONES, nothing), {}, (1,)),
        *(Hostile(f"Reduce{kind}", (-2 * ONES, nothing), keep, (1,)) for kind in kinds),
    ]
    assert wrong(cores, cases) == []
