"""`io_binding` in every state of a session, and while the state changes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import coexec
from coexec.errors import InputError
from tests.helpers.session_states import STATES, opened
from tests.helpers.small_models import from_nodes, tensor_info

MODEL = from_nodes(
    [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
    [tensor_info("x", [2])],
    [tensor_info("y", [2]), tensor_info("z", [2])],
)
X = np.array([-1, 2], np.float32)


@pytest.fixture(params=STATES)
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[coexec.InferenceSession]:
    with opened(request.param, MODEL, tmp_path) as made:
        yield made


def values(binding: onnxruntime.IOBinding) -> list[list[float]]:
    return [array.tolist() for array in binding.copy_outputs_to_cpu()]


def test_arrays(session: coexec.InferenceSession) -> None:
    binding = session.io_binding()
    assert isinstance(binding, onnxruntime.IOBinding) and isinstance(binding, coexec.IOBinding)
    assert binding.get_outputs() == [] and binding.copy_outputs_to_cpu() == []
    x = X.copy()
    binding.bind_cpu_input("x", x)
    binding.bind_output("z")
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert values(binding) == [[1, -2], [0, 2]]
    first = binding.copy_outputs_to_cpu()
    x[:] = 3  # what is bound is the memory, not what it held
    session.run_with_iobinding(binding)
    assert values(binding) == [[-3, -3], [3, 3]]
    assert [array.tolist() for array in first] == [[1, -2], [0, 2]]
    assert [value.numpy().tolist() for value in binding.get_outputs()] == [[-3, -3], [3, 3]]
    assert len(binding.get_outputs_as_ortvaluevector()) == 2


def test_memory_of_the_caller(session: coexec.InferenceSession) -> None:
    binding = session.io_binding()
    x, y = X.copy(), np.zeros(2, np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, [2], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, [2], y.ctypes.data)
    session.run_with_iobinding(binding)
    assert y.tolist() == [0, 2]
    [value] = binding.get_outputs()
    assert value.data_ptr() == y.ctypes.data
    copied = binding.copy_outputs_to_cpu()[0]
    x[:] = 5
    binding.bind_input("x", "cpu", 0, 1, [2], x.ctypes.data)  # the number of ONNX's type
    session.run_with_iobinding(binding)
    assert y.tolist() == [5, 5] and copied.tolist() == [0, 2]


def test_values(session: coexec.InferenceSession) -> None:
    binding = session.io_binding()
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type([2], np.float32)
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding, onnxruntime.RunOptions())
    assert y.numpy().tolist() == [0, 2]
    assert binding.get_outputs()[0].data_ptr() == y.data_ptr()
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []
    binding.bind_output("z")
    binding.clear_binding_inputs()
    binding.bind_cpu_input("x", 2 * X)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert values(binding) == [[2, -4]]


def test_the_state_changes_between_runs(tmp_path: Path) -> None:
    with opened("plan", MODEL, tmp_path) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert values(binding) == [[0, 2]]
        session.coexec_router.unplanned = "no plan answers any more"
        for _ in range(2):
            session.run_with_iobinding(binding)
            assert values(binding) == [[0, 2]]
            session.give_back_ort()  # its next handle is another one
        session.coexec_router.unplanned = None
        session.run_with_iobinding(binding)
        assert values(binding) == [[0, 2]]


def test_onnx_runtimes_own_class_outlives_the_own_session(tmp_path: Path) -> None:
    with opened("plan", MODEL, tmp_path) as session:
        binding = onnxruntime.IOBinding(session)
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.give_back_ort()
        session.run_with_iobinding(binding)
        assert values(binding) == [[0, 2]]


def test_what_does_not_fit(session: coexec.InferenceSession) -> None:
    binding = session.io_binding()
    with pytest.raises(RuntimeError, match="q"):
        binding.bind_cpu_input("q", X)
    with pytest.raises(ValueError, match="element_type and shape"):
        binding.bind_output("y", buffer_ptr=X.ctypes.data)
    binding.bind_cpu_input("x", X)
    with pytest.raises(RuntimeError, match="output"):
        session.run_with_iobinding(binding)  # nothing is asked for
    small = onnxruntime.OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    binding.bind_ortvalue_output("y", small)
    with pytest.raises(InputError):
        session.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert values(binding) == [[0, 2]]


def test_of_another_session(session: coexec.InferenceSession, tmp_path: Path) -> None:
    with opened("own", MODEL, tmp_path) as other, pytest.raises(ValueError, match="another"):
        session.run_with_iobinding(other.io_binding())
