"""Sessions that are pickled and copied."""

import copy
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import coexec
from tests.helpers.session_states import DEVICES, STATES, opened
from tests.helpers.small_models import branches

FEEDS = {"x": np.ones((1, 3, 20, 20), np.float32)}


class Named(coexec.InferenceSession):
    """A session with something of its own."""

    def __init__(self, path: Any, **words: Any) -> None:
        self.before = "before"
        super().__init__(path, **words)
        self._after = ["after"]


class Pickable(coexec.InferenceSession):
    """As ONNX Runtime's documentation makes a session that can be pickled."""

    def __init__(self, path: str, cache: str) -> None:
        self.path, self.cache = path, cache
        super().__init__(path, devices=DEVICES, planner="hope_greedy", cache=cache)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "cache": self.cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["cache"])  # type: ignore[misc]


def answers(session: Any) -> list[Any]:
    found: list[Any] = session.run(None, FEEDS)
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("state", STATES)
def test_copies_answer_the_same(state: str, tmp_path: Path) -> None:
    with opened(state, branches(), tmp_path) as session:
        expected = answers(session)
        for again in (
            pickle.loads(pickle.dumps(session)),
            copy.deepcopy(session),
            copy.copy(session),
        ):
            with again:
                assert again is not session and type(again) is coexec.InferenceSession
                assert again.devices == session.devices
                assert same(answers(again), expected)


def test_options_and_paths_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(branches(), str(tmp_path / "m.onnx"))
    monkeypatch.chdir(tmp_path)
    options = onnxruntime.SessionOptions()
    options.logid, options.intra_op_num_threads = "mine", 1
    cache = coexec.Cache(tmp_path / "cache")
    words: dict[str, Any] = {"devices": DEVICES, "planner": "hope_greedy", "cache": cache}
    with coexec.InferenceSession(
        Path("m.onnx"), options, ["CPUExecutionProvider"], enable_fallback=0, **words
    ) as session:
        content, planned = pickle.dumps(session), session.devices
    monkeypatch.chdir("/")
    with pickle.loads(content) as again:
        assert again.get_session_options().logid == "mine"
        assert again.get_session_options().intra_op_num_threads == 1
        assert again.devices == planned != ()
        assert again._enable_fallback is False


def test_what_a_subclass_adds_travels(tmp_path: Path) -> None:
    content = branches().SerializeToString()
    words: dict[str, Any] = {"devices": DEVICES, "planner": "hope_greedy", "cache": tmp_path}
    with Named(content, **words) as session, copy.deepcopy(session) as again:
        assert type(again) is Named
        assert (again.before, again._after) == ("before", ["after"])
        assert again._after is not session._after
        assert same(answers(again), answers(session))


def test_a_subclass_that_pickles_itself(tmp_path: Path) -> None:
    path = str(tmp_path / "m.onnx")
    onnx.save(branches(), path)
    made = Pickable(path, str(tmp_path / "c"))
    with made, pickle.loads(pickle.dumps(made)) as again:
        assert again.path == path and same(answers(again), answers(made))


def child(session: Any, pipe: Any) -> None:
    pipe.send((os.getpid(), session.devices, answers(session)))


def test_in_a_spawned_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with opened("plan", branches(), tmp_path) as session:
        process = context.Process(target=child, args=(session, theirs))
        process.start()
        pid, devices, found = ours.recv()
        process.join()
        assert pid != os.getpid() and devices == session.devices
        assert same(found, answers(session))
