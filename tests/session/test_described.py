"""What a session reports, in every state, is what ONNX Runtime reports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import coexec
from tests.helpers.session_states import DEVICES, STATES, opened
from tests.helpers.small_models import from_nodes, tensor_info

SHAPE = (3, 2)


def model() -> Any:
    made = from_nodes(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor_info("x", ["N", 2]), tensor_info("w", [2])],
        [tensor_info("y", ["N", 2])],
        {"w": np.ones(2, np.float32)},
    )
    made.producer_name, made.domain, made.model_version = "tests", "org.example", 7
    made.doc_string = "a model\nof two lines"
    helper.set_model_props(made, {"characters": "abc", "empty": ""})
    return made


@pytest.fixture(params=STATES)
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[coexec.InferenceSession]:
    words: dict[str, Any] = {} if request.param == "own" else {"shapes": {"x": SHAPE}}
    with opened(request.param, model(), tmp_path, **words) as made:
        yield made


@pytest.fixture(scope="module")
def rival() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model().SerializeToString())


def told(args: Any) -> list[Any]:
    return [(arg.name, arg.shape, arg.type) for arg in args]


def test_inputs_and_outputs(session: coexec.InferenceSession, rival: Any) -> None:
    was_open = session.ort_is_open
    [x] = session.get_inputs()
    assert (x.name, x.type) == ("x", "tensor(float)")
    assert x.shape == (["N", 2] if was_open else list(SHAPE))  # as it was asked for
    assert (
        told(session.get_outputs())
        == told(rival.get_outputs())
        == [("y", ["N", 2], "tensor(float)")]
    )
    initializers = session.get_overridable_initializers()
    assert told(initializers) == told(rival.get_overridable_initializers())
    assert session.ort_is_open == was_open


def test_metadata(session: coexec.InferenceSession, rival: Any) -> None:
    was_open, ours, theirs = session.ort_is_open, session.get_modelmeta(), rival.get_modelmeta()
    names = [name for name in dir(theirs) if not name.startswith("_")]
    assert {n: getattr(ours, n) for n in names} == {n: getattr(theirs, n) for n in names}
    assert ours.custom_metadata_map["characters"] == "abc" and ours.version == 7
    assert session.ort_is_open == was_open


def test_the_other_questions(session: coexec.InferenceSession, rival: Any) -> None:
    was_open = session.ort_is_open
    assert session.get_provider_options() == rival.get_provider_options()
    assert session.get_providers()[0] == "CPUExecutionProvider"
    assert set(session.devices) <= set(session.get_providers())
    assert isinstance(session.get_session_options(), onnxruntime.SessionOptions)
    session.disable_fallback()
    assert session.ort_is_open == was_open
    assert session._enable_fallback is False  # this opens it
    session.enable_fallback()
    assert session._enable_fallback is True
    for name in ("input_memory_infos", "output_memory_infos", "input_epdevices"):
        ours, theirs = getattr(session, f"get_{name}")(), getattr(rival, f"get_{name}")()
        assert len(ours) == len(theirs)


def test_providers_are_set(session: coexec.InferenceSession) -> None:
    x = np.ones(SHAPE, np.float32)
    planned = session.devices
    session.set_providers(session.get_providers())  # our own devices are none of ONNX Runtime's
    assert np.array_equal(session.run(None, {"x": x})[0], x + 1)
    session.set_providers(["CPUExecutionProvider"], [{"arena_extend_strategy": "kSameAsRequested"}])
    assert session.devices == planned
    session.give_back_ort()
    assert session._provider_options == session.get_provider_options()
    with pytest.raises(coexec.CoexecError, match="give a list of names"):
        session.set_providers(5)
    assert np.array_equal(session.run(None, {"x": x})[0], x + 1)


def test_options_of_the_session(tmp_path: Path) -> None:
    for state in STATES:
        options = onnxruntime.SessionOptions()
        options.logid = "mine"
        words: dict[str, Any] = {} if state == "own" else {"shapes": {"x": SHAPE}}
        with opened(state, model(), tmp_path, sess_options=options, **words) as session:
            assert session.get_session_options().logid == "mine"


def test_values_of_the_own_session_stay_valid(session: coexec.InferenceSession) -> None:
    value = session.create_ortvalue_from_shape_and_type(SHAPE, np.float32, "cpu")
    value.update_inplace(np.ones(SHAPE, np.float32))
    [y] = session.run_with_ort_values(None, {"x": value})
    assert y.numpy().tolist() == [[2, 2]] * 3


def test_other_shapes_beside_the_fixed_ones(session: coexec.InferenceSession) -> None:
    for rows in (3, 5, 3):
        x = np.ones((rows, 2), np.float32)
        assert np.array_equal(session.run(None, {"x": x})[0], x + 1)


def test_vectors_of_values(session: coexec.InferenceSession) -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

    feeds, found = OrtValueVector(), OrtValueVector()
    x = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(SHAPE, np.float32))
    feeds.push_back(x._ortvalue)
    device = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
    session.run_with_ortvaluevector(onnxruntime.RunOptions(), ["x"], feeds, ["y"], found, [device])
    assert found[0].numpy().tolist() == [[2, 2]] * 3


def test_symbolic_names_while_shapes_come_with_requests(tmp_path: Path) -> None:
    words: dict[str, Any] = {"devices": DEVICES, "planner": "hope_greedy", "cache": tmp_path}
    with coexec.InferenceSession(model().SerializeToString(), **words) as session:
        session.run(None, {"x": np.ones(SHAPE, np.float32)})
        assert session.get_inputs()[0].shape == session.get_outputs()[0].shape == ["N", 2]
