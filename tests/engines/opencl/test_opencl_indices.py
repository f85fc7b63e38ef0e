"""Indices out of range and lengths of sequences: an error that names node, index and size where
ONNX Runtime raises one, never another element; and what sequences without elements leave."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import coexec
from coexec.engines.base import OpenEngine
from coexec.errors import InputError
from tests.helpers.hostile import Array, Hostile, answers_of_ort, differences, one_model

pytest.importorskip("pyopencl")

from tests.helpers.needs_opencl import opencl_name, opencl_options
from tests.helpers.opencl_programs import compute, on_cpu

OPSET = 17
X, U = np.arange(10, dtype=np.float32).reshape(5, 2), np.full((1, 2), 77, np.float32)
SEQUENCES = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenEngine]:
    found = on_cpu(tmp_path_factory.mktemp("binaries"), as_gpu=request.param == "gpu")
    yield found
    found.close()


def cases_of(*numbers: int) -> list[Hostile]:
    """Each operator with an index of these among indices that are right."""
    each = []
    for number in numbers:
        index = np.array([-5, number, 4], np.int64)
        each += [
            Hostile("Gather", (X, index)),
            Hostile("GatherElements", (X, index[:, None])),
            Hostile("GatherND", (X, index[:, None])),
            Hostile("ScatterND", (X, index[:, None], np.ones((3, 2), np.float32))),
            Hostile("ScatterElements", (X, index[:, None], np.ones((3, 1), np.float32))),
        ]
    return each


def title(case: Hostile) -> str:
    assert case.inputs[1] is not None
    return f"{case.op_type}-{case.inputs[1].reshape(-1)[1]}{'-constant' * len(case.constants)}"


@pytest.mark.parametrize(
    "case",
    [
        *cases_of(5, -6, 2**32),
        *(replace(case, constants=(1,)) for case in cases_of(5)),
    ],
    ids=title,
)
def test_an_index_out_of_range(engine: OpenEngine, case: Hostile) -> None:
    assert case.inputs[1] is not None
    number = int(case.inputs[1].reshape(-1)[1])
    model, feeds = one_model([case], OPSET)
    with pytest.raises(Exception, match=r"indices|index|indice"):
        answers_of_ort(model, feeds)
    with pytest.raises(InputError) as caught:
        compute(engine, model, feeds)
    assert str(caught.value).startswith(f"{case.op_type} of 'y0_0': {number} in '")
    assert "axis 0 has 5 elements, so it may be -5 to 4" in str(caught.value)


def test_indices_in_range(engine: OpenEngine) -> None:
    model, feeds = one_model(cases_of(3, -1), OPSET)
    found, expected = compute(engine, model, feeds), answers_of_ort(model, feeds)
    assert [*map(differences, found, expected)] == [""] * len(expected)


def test_one_of_many_indices(engine: OpenEngine) -> None:
    """In a tensor of images, where vectors of channels are moved."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 32, 6, 5)).astype(np.float32)
    indices = rng.integers(0, 6, 40)
    indices[33] = 6
    model, feeds = one_model([Hostile("Gather", (x, indices), {"axis": 2})], OPSET)
    with pytest.raises(InputError, match=r"Gather of 'y0_0': 6 in 'x1' .* axis 2 has 6 elements"):
        compute(engine, model, feeds)


def test_the_length_to_reverse(engine: OpenEngine) -> None:
    lengths = np.array([4, 0, 5], np.int64)
    model, feeds = one_model([Hostile("ReverseSequence", (SEQUENCES, lengths))], OPSET)
    with pytest.raises(InputError, match=r"ReverseSequence of 'y0_0': 5 in 'x1' .* may be 0 to 4"):
        compute(engine, model, feeds)


def recurrent(kind: str, direction: str, layout: int, lengths: Array) -> Hostile:
    """With initial states; the hidden ones are vectors on cores, or single units."""
    rng = np.random.default_rng(1)
    gates, both = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1 + (direction == "bidirectional")

    def numbers(*shape: int) -> Array:
        return (rng.standard_normal(shape) / 2).astype(np.float32)

    state = (3, both, 8) if layout else (both, 3, 8)
    x = np.swapaxes(SEQUENCES, 0, 1).copy() if layout else SEQUENCES
    states = [numbers(*state) for _ in range(1 + (kind == "LSTM"))]
    weights = numbers(both, gates * 8, 5), numbers(both, gates * 8, 8)
    attributes = {"hidden_size": 8, "direction": direction, "layout": layout}
    outputs = 2 + (kind == "LSTM")
    return Hostile(kind, (x, *weights, None, lengths, *states), attributes, (1, 2), outputs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "direction"),
    [
        ("LSTM", "bidirectional"),
        ("GRU", "reverse"),
        ("RNN", "forward"),
    ],
)
def test_sequences_without_elements(engine: OpenEngine, kind: str, direction: str) -> None:
    """Their last states are 0, whatever the first ones are."""
    lengths = np.array([0, 4, 2], np.int32)
    model, feeds = one_model([recurrent(kind, direction, 0, lengths)], OPSET)
    found, expected = compute(engine, model, feeds), answers_of_ort(model, feeds)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [-1, 5])
def test_the_length_of_a_sequence(engine: OpenEngine, length: int) -> None:
    case = recurrent("GRU", "reverse", 1, np.array([0, length, 2], np.int32))
    model, feeds = one_model([case], OPSET)
    with pytest.raises(InputError, match=rf"GRU of 'y0_0': {length} in .* so it may be 0 to 4"):
        compute(engine, model, feeds)


def test_the_request_is_at_fault_and_not_the_device(tmp_path: Path) -> None:
    """The error is of ONNX Runtime's class too, and the plan answers the next request."""
    case = Hostile("Gather", (X, np.array([1, 2], np.int64)))
    model, feeds = one_model([case], OPSET)
    proto = ir.to_proto(model.source).SerializeToString()
    session = coexec.InferenceSession(
        proto,
        devices=[opencl_name()],
        planner="single",
        cache=tmp_path,
        engine_options=opencl_options(),
    )
    names = [i.name for i in ort.InferenceSession(proto).get_inputs()]
    wrong = {**feeds, names[1]: np.array([1, 9], np.int64)}
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"9 in .* axis 0 has 5 elements") as caught:
            session.run(None, wrong)
        assert isinstance(caught.value, InputError)
        assert session.degraded is None
        np.testing.assert_array_equal(session.run(None, feeds)[0], X[1:3])
    session.close()
