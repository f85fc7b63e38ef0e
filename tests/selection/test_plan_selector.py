"""The plans of a session, where other threads come between two steps; without a thread."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coexec.errors import DeviceError
from coexec.profiling.activity import Quiet, Traffic
from coexec.selection import background, plan_selector
from coexec.selection.background import Job
from coexec.selection.plan_selector import PlanSelector, _ShapesPlan
from coexec.selection.plan_states import (
    Action,
    MakePlan,
    PlanState,
    Running,
    SearchCache,
    Start,
    Started,
)
from coexec.settings import Settings

PREPARED: Any = SimpleNamespace(decision=None)


@pytest.fixture
def selector(tmp_path: Path) -> PlanSelector:
    return PlanSelector("m.onnx", Settings(cache=tmp_path))


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that were submitted. None of them runs by itself."""
    submitted: list[Job] = []
    worker = SimpleNamespace(submit=submitted.append, cancel=lambda job: job.cancelled.set())
    monkeypatch.setattr(background, "PLANS", worker)
    monkeypatch.setattr(background, "LOADS", worker)
    return submitted


def running(closed: list[str], name: str) -> Running:
    """A plan whose name is added to ``closed`` when it is closed."""
    return Running(SimpleNamespace(close=lambda: closed.append(name)), PREPARED)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["closed", "evicted"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_no_plan_is_left_open_by_a_session_that_is_closed_meanwhile(
    selector: PlanSelector, when: str, how: str
) -> None:
    """The plan in use is replaced while another thread closes the session."""
    closed: list[str] = []
    old, new = running(closed, "old"), running(closed, "new")

    class Slot(_ShapesPlan):
        def __setattr__(self, name: str, value: Any) -> None:
            is_new = name == "state" and value.running is new
            if is_new and when == "before":
                end()
            super().__setattr__(name, value)
            if is_new and when == "after":
                end()

    slot = selector._slots[()] = Slot(())
    slot.state = PlanState(running=old)

    def end() -> None:
        if how == "closed":
            selector.close()
        else:
            selector._drop(slot)

    selector._send(slot, Started(PREPARED, new))
    assert set(closed) == {"old", "new"} and slot.state == PlanState()


@pytest.mark.parametrize(
    "action", [SearchCache(), MakePlan(0.0), Start(PREPARED, in_background=True)]
)
def test_no_job_runs_for_a_session_that_was_closed_before_it_had_the_job(
    selector: PlanSelector, jobs: list[Job], action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    for step in ("_look", "_plan", "_start"):
        monkeypatch.setattr(selector, step, lambda *_: ran.append("a step"))
    slot = selector._slot(())
    for is_closed in (False, True):
        ran.clear()
        if is_closed:
            selector.close()
        selector._carry_out(slot, action)
        job = jobs.pop()
        job.run(job)
        assert bool(ran) != is_closed


def test_an_unexpected_error_of_one_more_pass_ends_it(
    selector: PlanSelector, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(background, "error_of_planning", fails)
    slot = selector._slot(())
    slot.state = PlanState(running=running([], "it"), is_decided=True, task="plan again")
    selector._carry_out(slot, MakePlan(0.0, again=True))
    (job,) = jobs
    job.run(job)
    assert slot.state.task is None and slot.state.running is not None


def test_a_failure_ends_the_job_that_would_start_the_plan_again(
    selector: PlanSelector, jobs: list[Job]
) -> None:
    slot, closed = selector._slot(()), list[str]()
    old, new = running(closed, "old"), running(closed, "new")
    selector._carry_out(slot, MakePlan(0.0, again=True))
    slot.state = PlanState(running=new, task="plan again")
    selector.failed((), old, DeviceError("gone"))
    assert not jobs[0].cancelled.is_set() and not closed
    with pytest.warns(match="gone"):
        selector.failed((), new, DeviceError("gone"))
    assert jobs[0].cancelled.is_set() and closed == ["new"]


@pytest.mark.parametrize("error", [None, DeviceError("gone")])
def test_a_plan_that_starts_disturbs_what_another_session_measures(
    selector: PlanSelector, error: DeviceError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = Traffic()
    monkeypatch.setattr(plan_selector, "TRAFFIC", traffic)
    quiet = Quiet(traffic.publish())
    disturbed: list[bool] = []

    def started(*_: object) -> Started:
        disturbed.append(quiet.disturbed(time.monotonic()))
        if error is not None:
            raise error
        return Started(PREPARED, None, "its outputs differ")

    monkeypatch.setattr(selector, "_started", started)
    selector._start(selector._slot(()), PREPARED)
    assert disturbed == [True] and not quiet.disturbed(time.monotonic())
    traffic.withdraw()
