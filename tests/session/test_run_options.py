"""`RunOptions` and `run_async`, whatever answers."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import coexec
from coexec.engines.detect import usable_cores
from coexec.errors import CoexecError, InputError, TerminatedError
from tests.helpers.patience import ENOUGH_S
from tests.helpers.session_states import DEVICES, STATES, opened
from tests.helpers.small_models import branches

FEEDS = {"x": np.ones((1, 3, 20, 20), np.float32)}


@pytest.fixture(scope="module", params=STATES)
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[coexec.InferenceSession]:
    with opened(request.param, branches(), tmp_path_factory.mktemp("cache")) as made:
        yield made
        assert made.ort_is_open == (request.param == "own")


def test_options_that_change_nothing(session: coexec.InferenceSession) -> None:
    options = onnxruntime.RunOptions()
    options.log_severity_level = 3
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    expected = session.run(None, FEEDS)
    for a, b in zip(session.run(None, FEEDS, options), expected, strict=True):
        assert np.array_equal(a, b)


def test_ended_before_it_begins(session: coexec.InferenceSession) -> None:
    options = onnxruntime.RunOptions()
    options.terminate = True
    with pytest.raises(Fail) as caught:
        session.run(None, FEEDS, options)
    assert isinstance(caught.value, CoexecError)
    options.terminate = False
    assert len(session.run(None, FEEDS, options)) == 2


def test_ended_by_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coexec.runtime.transfers import Transfers

    graph = coexec.load(branches()).graph
    pins = {task.name: DEVICES[n % len(DEVICES)] for n, task in enumerate(graph.tasks)}
    with opened("plan", branches(), tmp_path, planner="heft", pins=pins) as session:
        running = session.coexec_router.running
        assert running is not None and len(running.prepared.compiled.segments) > 2
        expected = session.run(None, FEEDS)
        options, begun = onnxruntime.RunOptions(), 0
        starts = Transfers.__init__

        def ends_the_run(*given: Any) -> None:
            nonlocal begun
            begun += 1
            thread = threading.Thread(target=lambda: setattr(options, "terminate", True))
            thread.start()
            thread.join()
            starts(*given)

        with monkeypatch.context() as patched:
            patched.setattr(Transfers, "__init__", ends_the_run)
            with pytest.raises(TerminatedError, match="ended by its RunOptions") as caught:
                session.run(None, FEEDS, options)
        assert isinstance(caught.value, Fail)
        assert begun <= len(DEVICES)  # what had begun on each device
        assert not session.ort_is_open
        options.terminate = False
        for a, b in zip(session.run(None, FEEDS, options), expected, strict=True):
            assert np.array_equal(a, b)


def test_a_plan_of_one_device(tmp_path: Path) -> None:
    with opened("plan", branches(), tmp_path, devices=DEVICES[:1], planner="single") as session:
        options = onnxruntime.RunOptions()
        options.terminate = True
        with pytest.raises(Fail):
            session.run(None, FEEDS, options)


def answered(session: Any, *request: Any) -> tuple[list[Any], Any, str, str]:
    """What the callback of `run_async` is given, and the name of its thread."""
    told: list[Any] = []
    done = threading.Event()

    def callback(outputs: list[Any], user_data: Any, error: str) -> None:
        told.extend((outputs, user_data, error, threading.current_thread().name))
        done.set()

    assert session.run_async(*request[:2], callback, "mine", *request[2:]) is None
    assert done.wait(ENOUGH_S)
    return tuple(told)


def test_asynchronous(session: coexec.InferenceSession) -> None:
    outputs, mine, error, thread = answered(session, ["joined"], FEEDS)
    assert (mine, error) == ("mine", "") and thread != threading.current_thread().name
    assert np.array_equal(outputs[0], session.run(["joined"], FEEDS)[0])
    assert len(answered(session, None, FEEDS)[0]) == 2
    options = onnxruntime.RunOptions()
    options.terminate = True
    outputs, mine, error, _ = answered(session, None, FEEDS, options)
    assert outputs == [] and mine == "mine" and error


def test_asynchronous_mistakes(tmp_path: Path) -> None:
    for state in STATES:
        with opened(state, branches(), tmp_path) as session:
            outputs, mine, error, _ = answered(session, ["nope"], FEEDS)
            assert (outputs, mine) == ([], "mine") and "nope" in error
            with pytest.raises(InputError, match="'x' is missing"):
                session.run_async(None, {}, print, None)
            with pytest.raises(InputError, match="give a dict"):
                session.run_async(None, [1], print, None)  # type: ignore[arg-type]


def test_a_callback_that_fails(
    session: coexec.InferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    def callback(*_: Any) -> None:
        raise KeyError("of the program")

    for _ in range(2 * len(usable_cores())):  # more than there are threads
        session.run_async(None, FEEDS, callback, None)
    assert answered(session, None, FEEDS)[2] == ""  # the threads go on
    assert "the callback of run_async has failed" in caplog.text
