"""Requests and answers with unusual numbers are ONNX Runtime's, to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from coexec.arrays import MOST_ORDINARY, is_finite, is_ordinary
from tests.helpers.session_states import opened
from tests.helpers.small_models import from_nodes, tensor_info


def growing() -> onnx.ModelProto:
    """Exp of a sum behind a maximum."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m"], "pool", kernel_shape=[3], pads=[1, 1]),
        helper.make_node("Exp", ["m"], ["y"], "exp"),
    ]
    return from_nodes(nodes, [tensor_info("x", [1, 4, 9])], [tensor_info("y", [1, 4, 9])])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 7e4, -7e4, 100.0])
def test_an_unusual_number_is_answered_by_onnx_runtime(
    number: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 is an ordinary number, whose exponential is not."""
    feeds = {"x": np.linspace(-1, 1, 36, dtype=np.float32).reshape(1, 4, 9)}
    own = onnxruntime.InferenceSession(growing().SerializeToString())
    with opened("plan", growing(), tmp_path) as session:
        ways: list[str] = []
        for name in ("_by_plan", "_by_ort"):
            run: Any = getattr(session.coexec_router, name)

            def noted(*request: Any, run: Any = run, name: str = name) -> Any:
                ways.append(name)
                return run(*request)

            monkeypatch.setattr(session.coexec_router, name, noted)
        assert session.run(None, feeds)[0].shape == (1, 4, 9) and ways == ["_by_plan"]
        feeds["x"][0, 2, 4] = number
        found, expected = session.run(None, feeds)[0], own.run(None, feeds)[0]
        assert ways[1:] == ["_by_plan", "_by_ort"] and found.tobytes() == expected.tobytes()
        traced, _ = session.run_with_trace(None, feeds)
        assert traced[0].tobytes() == expected.tobytes()
        feeds["x"][0, 2, 4] = 0.5
        session.run(None, feeds)
        assert ways[-1] == "_by_plan"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_what_is_ordinary(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
    values = np.ones((3, 5), kind)
    assert is_ordinary(values)
    for number in (np.nan, np.inf, -np.inf):
        values[1, 3] = number
        assert not is_ordinary(values) and not is_finite(values)
    if dtype != "float16":  # all of its numbers are smaller
        for sign in (1, -1):
            values[1, 3] = sign * MOST_ORDINARY
            assert is_ordinary(values)
            values[1, 3] = sign * MOST_ORDINARY * 2
            assert not is_ordinary(values) and is_finite(values)


def test_everything_else_is_ordinary() -> None:
    empty, whole = np.empty((0, 3), np.float32), np.array([2**62])
    assert all(map(is_ordinary, (empty, whole, np.array(["text"]), ["a sequence"], True)))
