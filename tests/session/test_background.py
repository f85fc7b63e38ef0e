"""A session answers at once, and its plan comes later."""

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import coexec
from coexec import processes
from coexec.cache import Cache, Entry
from coexec.engines.detect import usable_cores
from coexec.engines.names import whole_cpu
from coexec.errors import CoexecError, DegradedWarning, ExecutionError, InputError, UsageError
from coexec.processes import EndedError
from coexec.selection import background
from coexec.selection.chooser import Chooser
from coexec.selection.plan_selector import PlanSelector
from coexec.selection.plan_states import Patience
from coexec.selection.prepare import prepare
from coexec.session.router import Router
from coexec.settings import Settings
from tests.helpers.patience import ENOUGH_S, until
from tests.helpers.quick_choice import PROGRAM
from tests.helpers.settled import settled
from tests.helpers.small_models import branches

pytestmark = pytest.mark.usefixtures("quick_choice")

DEVICES = [f"cpu:{core}" for core in usable_cores()[:2]]
X = np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)


QUICK_CHILD = f"""{PROGRAM}
from coexec.processes import Parent
from coexec.selection import background
background._PATIENCE_S = 1.0
background.serve(Parent())
"""


AT_ONCE = Patience(look_s=0.0, head_start_s=0.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning in the background begins at once, and races as briefly there as here."""
    monkeypatch.setattr(PlanSelector, "limits", AT_ONCE)
    usual = processes.command

    def command(target: str) -> list[str]:
        if target == "coexec.selection.background:serve":
            return [sys.executable, "-P", "-c", QUICK_CHILD]
        return usual(target)

    monkeypatch.setattr(processes, "command", command)


def any_size() -> onnx.ModelProto:
    """y = relu(x) @ w, for any number of rows."""
    w = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], np.arange(16, dtype=np.float32))
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    graph = helper.make_graph(nodes, "any_size", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.long
def test_it_answers_at_once_and_says_what_was_decided(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(branches(), str(model))
    settled(model)
    expected = onnxruntime.InferenceSession(str(model)).run(None, {"x": X})
    cache = tmp_path / "cache"
    with caplog.at_level(logging.INFO, "coexec"):
        with coexec.InferenceSession(model, devices=DEVICES, cache=cache) as session:
            assert session.degraded == "its plan is still being made"
            first = session.run(None, {"x": X})
            assert np.array_equal(first[0], expected[0])  # ONNX Runtime's own answer
            session.wait()
            assert session.degraded is None and session.devices
            later = session.run(None, {"x": X})
        (told,) = [r.message for r in caplog.records if "decided in" in r.message]
    assert str(cache) in told and str(model) in told
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(later, expected, strict=True))
    (choice,) = cache.glob("choices/*")
    with coexec.InferenceSession(model, devices=DEVICES, cache=cache) as session:
        session.wait()
        assert session.degraded is None and not session.ort_is_open
        assert session.get_inputs()[0].shape == [1, 3, 20, 20]
        assert not session.ort_is_open
    assert choice.exists()


@pytest.mark.long
def test_shapes_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanSelector, "limits", replace(AT_ONCE, worth_s=0.0))
    monkeypatch.setattr(PlanSelector, "most_shapes", 2)
    monkeypatch.setattr(Router, "account_every_s", -1.0)
    model = any_size().SerializeToString()
    own = onnxruntime.InferenceSession(model)
    with coexec.InferenceSession(model, devices=DEVICES, cache=tmp_path) as session:
        assert session.get_inputs()[0].shape == ["rows", 4]
        for rows in (3, 5, 3, 7, 5):
            x = np.full((rows, 4), rows, np.float32)
            for _ in range(2):
                [found] = session.run(None, {"x": x})
                assert np.array_equal(found, own.run(None, {"x": x})[0])
                session.wait()
            assert session.degraded is None and session.devices
            if rows == 7:  # the plan for 5 rows was used least recently
                assert with_plan(session) == [3, 7]
        assert len(with_plan(session)) == 2
    # Each shape was decided once, and is remembered.
    assert len(list(tmp_path.glob("choices/*"))) == 3


def with_plan(session: coexec.InferenceSession) -> list[int]:
    """The numbers of rows for which a plan is open."""
    plans = session.coexec_router.plans
    assert plans is not None
    return [rows for rows in (3, 5, 7) if plans.selector.running((("x", (rows, 4)),))]


def test_shapes_given_before_any_request(tmp_path: Path) -> None:
    model = any_size().SerializeToString()
    words: dict[str, Any] = {"devices": DEVICES, "cache": tmp_path, "shapes": {"x": (3, 4)}}
    with coexec.InferenceSession(model, background=False, **words) as session:
        assert session.degraded is None and session.devices
        assert session.get_inputs()[0].shape == [3, 4]
        for rows in (3, 6):  # others are answered all the same
            [found] = session.run(None, {"x": np.ones((rows, 4), np.float32)})
            assert found.shape == (rows, 4)


def test_shapes_that_the_model_cannot_have_are_refused_at_once(tmp_path: Path) -> None:
    model = any_size().SerializeToString()
    for shapes, said in (({"x": (3, 5)}, "has the shape .rows,4."), ({"row": 3}, "'rows'")):
        with pytest.raises(UsageError, match=said):
            coexec.InferenceSession(model, devices=DEVICES, cache=tmp_path, shapes=shapes)


@pytest.mark.skipif(len(DEVICES) < 2, reason="this process may use one core only")
def test_fewer_cores_than_the_own_session_has_are_a_plan(tmp_path: Path) -> None:
    """ONNX Runtime's own session, which uses all cores, does not answer in their place."""
    selector = PlanSelector(branches().SerializeToString(), Settings(cache=tmp_path))
    for devices, answers in (([DEVICES[0]], True), ([whole_cpu()], False)):
        one = prepare(branches(), Settings(devices, "single", cache=tmp_path))
        started = selector._started(selector._slot(()), one)
        assert (started.running is not None) == answers and started.reason is None
        if started.running is not None:
            started.running.runner.close()


def test_a_planner_by_name_is_waited_for(tmp_path: Path) -> None:
    with coexec.InferenceSession(
        branches(), devices=DEVICES, planner="heft", cache=tmp_path
    ) as session:
        assert session.degraded is None and session.devices


def test_a_closed_session_leaves_no_process(tmp_path: Path) -> None:
    session = coexec.InferenceSession(branches(), devices=DEVICES, cache=tmp_path)
    while (job := background.PLANS.job) is None or (process := job.child) is None:
        assert session.degraded
    session.close()
    assert process.wait(ENOUGH_S) != 0
    with pytest.raises(CoexecError, match="closed"):
        session.run(None, {"x": X})


HANGS = """
import os, time
from dataclasses import replace
from functools import partial
from pathlib import Path
from coexec.processes import Parent
parent = Parent()
source, *_ = parent.receive()
if source:
    os.fork()  # as a library may do; the copy holds the pipes
    Path(source).touch()
    time.sleep(3600)
parent.send(None)
os._exit(0)
"""


@pytest.mark.parametrize("when", ["at work", "before it has a process"])
def test_a_cancelled_job_gives_way_to_the_next(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "command", lambda *_: [sys.executable, "-c", HANGS])
    worker, errors = background.Worker("plans"), list[object]()
    settings, sign = Settings(cache=tmp_path), tmp_path / "at work"

    def plan(source: str, job: background.Job) -> None:
        if source and when != "at work":
            worker.cancel(job)
        errors.append(background.error_of_planning(job, source, settings, False))

    hanging = background.Job(partial(plan, str(sign)))
    worker.submit(hanging)
    worker.submit(background.Job(partial(plan, "")))
    if when == "at work":
        until(sign.exists, "the job's process")
        worker.cancel(hanging)
    until(lambda: len(errors) == 2, "the next job")
    assert isinstance(errors[0], EndedError) and errors[1] is None


def test_a_program_that_ends_early_leaves_no_process(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(branches(), str(model))
    program = (
        "import sys, time, coexec\n"
        "from coexec.selection import background\n"
        "from coexec.selection.plan_selector import PlanSelector\n"
        "from coexec.selection.plan_states import Patience\n"
        "PlanSelector.limits = Patience(look_s=0.0, head_start_s=0.0)\n"
        "s = coexec.InferenceSession(sys.argv[1], cache=sys.argv[2])\n"
        "while not (background.PLANS.job and background.PLANS.job.child): time.sleep(0.01)\n"
        "print(background.PLANS.job.child.pid, background.TRAFFIC.publish())\n"
    )
    words = [sys.executable, "-c", program, str(model), str(tmp_path / "cache")]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=ENOUGH_S)
    pid, traffic = said.stdout.split()
    assert said.stderr == ""
    assert not os.path.exists(traffic)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


@pytest.mark.long
def test_threads_while_the_plan_takes_over(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    content, options = branches().SerializeToString(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # spinning threads would leave the planner no processor
    words: dict[str, Any] = {"devices": DEVICES, "cache": tmp_path}
    with coexec.InferenceSession(content, options, **words) as session:
        expected = session.run(None, {"x": X})
        stop = threading.Event()

        def ask() -> None:
            try:
                while not stop.is_set():
                    for a, b in zip(session.run(None, {"x": X}), expected, strict=True):
                        assert np.allclose(a, b, atol=1e-5)
                    stop.wait(0.01)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        session.wait()
        session.run(None, {"x": X})
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed


def test_a_device_that_fails_is_replaced(tmp_path: Path) -> None:
    with coexec.InferenceSession(
        branches(), devices=DEVICES, planner="heft", cache=tmp_path
    ) as session:
        running = session.coexec_router.running

        def fails(*_: object, **__: object) -> None:
            raise ExecutionError("cpu:0 is on fire")

        running.runner.run = fails  # type: ignore[method-assign]
        with pytest.raises(InputError):  # the request is at fault
            session.run(None, {"x": X[:, :2]})
        assert session.degraded is None
        with pytest.warns(DegradedWarning, match="on fire"):
            found = session.run(None, {"x": X})
        assert session.degraded == "cpu:0 is on fire" and not session.devices
        again = session.run(None, {"x": X})
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))


def test_an_unexpected_error_in_the_background_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("coexec.selection.prepare.plan_maker", fails)
    words: dict[str, Any] = {"cache": tmp_path, "planner": "auto"}
    with coexec.InferenceSession(branches().SerializeToString(), **words) as session:
        session.wait()
        assert session.degraded == "planning in the background failed: the disk is gone"
        assert session.run(None, {"x": X})


def test_a_cached_choice_does_not_wait_for_the_planning_of_another_session(
    tmp_path: Path,
) -> None:
    words: dict[str, Any] = {"devices": DEVICES, "planner": "heft", "cache": tmp_path}
    coexec.InferenceSession(branches(), **words).close()
    ends = threading.Event()
    background.PLANS.submit(background.Job(lambda job: bool(ends.wait(ENOUGH_S))))  # type: ignore[arg-type,return-value]
    try:
        with coexec.InferenceSession(branches(), background=True, **words) as session:
            session.wait()
            assert session.devices and not ends.is_set()
    finally:
        ends.set()


@pytest.mark.long
def test_a_choice_in_doubt_is_raced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanSelector, "limits", replace(AT_ONCE, again_s=0.0))
    words: dict[str, Any] = {"devices": DEVICES, "cache": tmp_path, "background": False}
    model = branches().SerializeToString()
    coexec.InferenceSession(model, **words).close()
    cache = Cache(tmp_path)
    key = Chooser(model, Settings(devices=DEVICES, cache=cache))._key

    def remembered() -> dict[str, Any]:
        entry = cache.find("choices", key)
        assert entry is not None
        found: dict[str, Any] = json.loads(entry.files["choice.json"])
        return found

    doubted = remembered()
    doubted["decision"]["candidates"][1] |= {"status": "in doubt"}
    cache.add("choices", key, Entry({"choice.json": json.dumps(doubted).encode()}))
    with coexec.InferenceSession(model, **words) as session:
        selector = session.coexec_router.plans.selector
        selector.start_known((), selector.check())
        _until_planned(session)
    assert remembered()["decision"]["passes"] >= 2


@pytest.mark.long
def test_a_choice_of_less_time_goes_on_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanSelector, "limits", replace(AT_ONCE, again_s=0.0))
    model = tmp_path / "m.onnx"
    onnx.save(branches(), str(model))
    settled(model)
    words: dict[str, Any] = {"devices": DEVICES, "cache": tmp_path / "cache"}
    shorter = {"planners": "heft", "seconds": 1e-3}
    first = Chooser(model, Settings(planner_options=shorter, **words)).make()
    assert any(c.status == "untried" for c in first.candidates)
    longer = {**shorter, "seconds": 600.0}
    with coexec.InferenceSession(model, planner_options=longer, **words) as session:
        session.wait()
        assert session.devices and session.degraded is None
        _until_planned(session)
    decision = Chooser(model, Settings(planner_options=longer, **words)).decision
    assert decision is not None and not decision.untried and decision.passes > 1


def _until_planned(session: coexec.InferenceSession) -> None:
    """Wait until nothing is planned for the session any more, its second choice included."""
    selector = session.coexec_router.plans.selector
    while selector.state(()).task is not None:
        threading.Event().wait(0.05)


def test_no_thread_is_left_when_the_program_ends() -> None:
    """A thread that the end of the interpreter stops may hold a lock, for which a session that is
    deleted then would wait for ever."""
    worker, done = background.Worker("plans"), list[background.Job]()
    job = background.Job(done.append, 60.0)
    worker.submit(job)
    thread = worker.thread
    assert thread is not None and thread.is_alive()
    worker.stop()
    assert not thread.is_alive() and not done
    with worker._changed:  # as if a thread had been stopped here
        other = threading.Thread(target=worker.cancel, args=(job,), daemon=True)
        other.start()
        other.join(ENOUGH_S)
        assert not other.is_alive()


class Once:
    """An attribute that another thread sets to None as soon as it was read."""

    def __init__(self, value: object) -> None:
        self._left = [value]

    def __get__(self, *_: object) -> Any:
        return self._left.pop() if self._left else None

    def __set__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("reader", ["cancel", "stop"])
def test_a_job_may_end_while_it_is_cancelled(reader: str) -> None:
    ended: list[str] = []
    process = SimpleNamespace(kill=partial(ended.append, "killed"))

    class EndingJob(background.Job):
        child = Once(process)  # type: ignore[assignment]

    ending = EndingJob(lambda job: None)

    class EndingWorker(background.Worker):
        job = Once(ending)  # type: ignore[assignment]

    worker = EndingWorker("plans")
    if reader == "cancel":
        worker.cancel(ending)
    else:
        worker.stop()
    assert ending.cancelled.is_set() and ended == ["killed"]


def test_the_process_is_told_of_everything(tmp_path: Path) -> None:
    settings = Settings(devices=DEVICES, cache=tmp_path, mode="throughput")
    assert pickle.loads(pickle.dumps(settings)) == settings
