"""What programs feed and get in place of NumPy's arrays, in every state of a session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import coexec
from coexec.errors import InputError
from coexec.session.feeds import array_at, array_of, as_array, dtype_of, shape_of
from tests.helpers.session_states import STATES, opened
from tests.helpers.small_models import branches, from_nodes, tensor_info

SMALL = from_nodes(
    [helper.make_node("Relu", ["x"], ["y"])], [tensor_info("x", [2])], [tensor_info("y", [2])]
)
X = np.array([-1, 2], np.float32)


@pytest.fixture(params=STATES)
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[coexec.InferenceSession]:
    with opened(request.param, SMALL, tmp_path) as made:
        yield made
        assert made.ort_is_open == (request.param == "own")  # nothing of this opens it


class Exporting:
    """A tensor of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **words: Any) -> Any:
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Converting:
    """A tensor of another library that NumPy knows how to convert."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return X


@pytest.mark.parametrize(
    "fed",
    [
        X,
        onnxruntime.OrtValue.ortvalue_from_numpy(X),
        [-1.0, 2.0],
        [-1, 2],
        (-1, 2),
        Exporting(X),
        Converting(),
        np.stack([X, X], axis=1)[:, 0],
    ],
    ids=["array", "OrtValue", "floats", "integers", "tuple", "DLPack", "__array__", "strided"],
)
def test_feeds(session: coexec.InferenceSession, fed: Any) -> None:
    assert np.array_equal(session.run(None, {"x": fed})[0], [0, 2])
    assert np.array_equal(session.run([], {"x": fed})[0], [0, 2])


def test_numbers(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    model = from_nodes([node], [tensor_info("x", [])], [tensor_info("y", [])])
    for state in STATES:
        with opened(state, model, tmp_path) as session:
            for fed in (3, 3.0, np.float32(3), np.array(3, np.float32)):
                assert session.run(None, {"x": fed})[0] == -3


def test_booleans_in_values(tmp_path: Path) -> None:
    node, kind = helper.make_node("Not", ["x"], ["y"]), TensorProto.BOOL
    model = from_nodes([node], [tensor_info("x", [2], kind)], [tensor_info("y", [2], kind)])
    x = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([True, False]))
    for state in STATES:
        with opened(state, model, tmp_path) as session:
            [y] = session.run_with_ort_values(None, {"x": x})
            assert y.data_type() == "tensor(bool)"
            assert y.numpy().tolist() == [False, True]
            assert session.run(None, {"x": [True, False]})[0].tolist() == [False, True]


def test_values_to_values(session: coexec.InferenceSession) -> None:
    x = onnxruntime.OrtValue.ortvalue_from_numpy(X)
    [y] = session.run_with_ort_values(["y"], {"x": x})
    assert isinstance(y, onnxruntime.OrtValue)
    kept = y.numpy().copy()
    session.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(2 * X)})
    assert np.array_equal(kept, [0, 2]) and np.array_equal(y.numpy(), kept)


@pytest.mark.parametrize("state", STATES)
def test_what_onnx_runtime_refuses(state: str, tmp_path: Path) -> None:
    with opened(state, SMALL, tmp_path) as session:
        for fed in (np.zeros(2), np.zeros(3, np.float32), ["a", "b"], object()):
            with pytest.raises(InputError) as caught:
                session.run(None, {"x": fed})
            assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(InputError):
            session.run_with_ort_values(
                None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32))}
            )
        assert np.array_equal(session.run(None, {"x": X})[0], [0, 2])


def test_a_weight_that_a_feed_replaces_is_the_own_sessions_matter(tmp_path: Path) -> None:
    model = from_nodes(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor_info("x", [2]), tensor_info("w", [2])],
        [tensor_info("y", [2])],
        {"w": np.ones(2, np.float32)},
    )
    for state in STATES:
        with opened(state, model, tmp_path) as session:
            assert [arg.name for arg in session.get_overridable_initializers()] == ["w"]
            assert np.array_equal(session.run(None, {"x": X})[0], X + 1)
            assert np.array_equal(session.run(None, {"x": X, "w": X})[0], X + X)
            assert np.array_equal(session.run(None, {"x": X})[0], X + 1)


def test_nothing_is_copied() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(X)
    array = array_of(value)
    assert array is not None and array.ctypes.data == X.ctypes.data == value.data_ptr()
    assert np.shares_memory(as_array(Exporting(X), "float32"), X)
    assert as_array(X, "float64") is X
    owner = np.arange(6, dtype=np.int16)
    there = array_at(owner.ctypes.data, (2, 3), np.dtype("int16"), owner)
    there[1, 2] = -1
    assert owner[5] == -1 and there.shape == (2, 3)
    assert array_at(0, (0, 3), np.dtype("int16")).shape == (0, 3)


def test_memory_lives_as_long_as_its_array() -> None:
    array = array_of(onnxruntime.OrtValue.ortvalue_from_shape_and_type([1000], np.float32))
    assert array is not None
    array[:] = 7
    others = [
        onnxruntime.OrtValue.ortvalue_from_shape_and_type([1000], np.float32) for _ in range(50)
    ]
    for other in others:
        there = array_of(other)
        assert there is not None
        there[:] = 0
    assert (array == 7).all()


def test_types_and_shapes() -> None:
    assert dtype_of("tensor(float)") == dtype_of(1) == dtype_of(np.float32) == np.float32
    assert dtype_of("tensor(uint16)") == dtype_of(4) == np.uint16
    assert dtype_of(8) is dtype_of(16) is dtype_of(99) is dtype_of("tensor(string)") is None
    assert shape_of([[1, 2], [3, 4], [5, 6]]) == (3, 2)
    assert shape_of(onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((4, 5)))) == (4, 5)
    with pytest.raises(ValueError, match="inhomogeneous"):
        shape_of([[1], [1, 2]])


def test_results_of_a_larger_network_agree(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)
    rival = onnxruntime.InferenceSession(branches().SerializeToString())
    expected = rival.run(None, {"x": x})
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    for state in STATES:
        with opened(state, branches(), tmp_path) as session:
            for found, right in zip(
                session.run_with_ort_values(None, {"x": value}), expected, strict=True
            ):
                np.testing.assert_allclose(found.numpy(), right, 1e-3, 1e-4)
