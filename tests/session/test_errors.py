"""Errors that ``except`` finds, however a program spells it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as theirs

import coexec
from coexec.errors import CoexecError, InputError, ModelError
from tests.helpers.session_states import DEVICES, STATES, opened
from tests.helpers.small_models import branches, from_nodes, tensor_info

FEEDS = {"x": np.ones((1, 3, 20, 20), np.float32)}


def unknown_operator() -> bytes:
    made = from_nodes(
        [helper.make_node("Nothing", ["x"], ["y"])],
        [tensor_info("x", [2])],
        [tensor_info("y", [2])],
    )
    return bytes(made.SerializeToString())


WORDS: list[dict[str, Any]] = [
    {},
    {"devices": DEVICES, "planner": "single"},
    {"background": False},
    {"sess_options": "less"},
]


@pytest.mark.parametrize("words", WORDS, ids=["auto", "planner", "now", "own"])
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("nowhere/m.onnx", "NoSuchFile"),
        (b"junkjunk", "InvalidProtobuf"),
        (b"", "InvalidArgument"),
        (unknown_operator(), "InvalidGraph"),
    ],
    ids=["missing", "junk", "empty", "unknown operator"],
)
def test_models(model: Any, name: str, words: dict[str, Any], tmp_path: Path) -> None:
    words = dict(words)
    if words.get("sess_options"):
        words["sess_options"] = onnxruntime.SessionOptions()
        words["sess_options"].use_deterministic_compute = True
    with pytest.raises(Exception) as rival:
        onnxruntime.InferenceSession(model)
    with pytest.raises(ModelError) as caught:
        coexec.InferenceSession(model, cache=tmp_path, **words)
    for kind in (CoexecError, ValueError, type(rival.value), getattr(theirs, name)):
        assert isinstance(caught.value, kind)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(theirs.NoSuchFile, match="give the path of an ONNX file"):
        coexec.InferenceSession(tmp_path / "none.onnx", cache=tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("names", "feeds", "kinds"),
    [
        (None, {}, (ValueError,)),
        (["nope"], FEEDS, (ValueError, theirs.InvalidArgument)),
        (None, FEEDS | {"z": 1}, (ValueError,)),
        (None, {"x": np.ones((1, 3, 20, 20))}, (ValueError, theirs.InvalidArgument)),
        (None, {"x": np.ones((1, 3, 21, 20), np.float32)}, (ValueError, theirs.InvalidArgument)),
    ],
    ids=["missing", "output", "unknown", "type", "shape"],
)
def test_requests(state: str, names: Any, feeds: Any, kinds: Any, tmp_path: Path) -> None:
    with opened(state, branches(), tmp_path) as session:
        for kind in (CoexecError, InputError, *kinds):
            with pytest.raises(kind) as caught:
                session.run(names, feeds)
            assert len(str(caught.value).splitlines()) == 1
        assert len(session.run(None, FEEDS)) == 2
