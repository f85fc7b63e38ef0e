"""Which plan answers: every order of events, without a clock, a thread or a plan that runs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coexec.selection.plan_states import (
    CacheSearched,
    Cancel,
    EnoughRequests,
    Event,
    Failed,
    Log,
    MakePlan,
    Patience,
    PlanMade,
    PlanState,
    Requested,
    Running,
    SearchCache,
    Start,
    Started,
    Switch,
    TimeSpent,
    Unusable,
    next_actions,
)

LIMITS = Patience()
A: Any = SimpleNamespace(plan="a", decision=None)
B: Any = SimpleNamespace(plan="b", decision="decided")
OF_A, OF_B = Running(None, A), Running(None, B)  # type: ignore[arg-type]


def after(*events: Event, state: PlanState | None = None) -> tuple[PlanState, list[Any]]:
    """The state after events, and the actions after the last one, without texts for the log."""
    state, actions = state or PlanState(), ()
    for event in events:
        state, actions = next_actions(state, event, LIMITS)
    return state, [action for action in actions if not isinstance(action, Log)]


def test_a_plan_is_looked_for_then_made_then_loaded_then_answers() -> None:
    events: list[Event] = [Requested()]
    state, actions = after(*events)
    assert (
        actions == [SearchCache(LIMITS.look_s)] and state.reason == "its plan is still being made"
    )
    events.append(CacheSearched(None))
    assert after(*events)[1] == [MakePlan(LIMITS.head_start_s - LIMITS.look_s)]
    events.append(PlanMade(None))
    assert after(*events)[1] == [SearchCache()]
    assert after(*events)[0].keeps_requests and after(*events)[0].is_busy
    events.append(CacheSearched(A))
    assert after(*events)[1] == [Start(A)]
    events.append(Started(A, OF_A))
    state, actions = after(*events)
    assert actions == [Switch(None)] and state.running is OF_A and state.reason is None
    assert state.is_decided and not state.is_busy and not state.keeps_requests


def test_an_open_choice_goes_on_and_the_plan_in_use_stays_meanwhile() -> None:
    again = MakePlan(LIMITS.again_s, again=True)
    opened, actions = after(CacheSearched(A, is_open=True), Started(A, OF_A))
    assert actions == [Switch(None), again] and opened.running is OF_A and not opened.is_busy
    # The same plan, and nothing is open any more.
    state, actions = after(PlanMade(None), CacheSearched(A), state=opened)
    assert actions == [] and state.running is OF_A and state.task is None
    # Another plan, which is open, too.
    state, actions = after(
        PlanMade(None), CacheSearched(B, is_open=True), Started(B, OF_B), state=opened
    )
    assert actions == [Switch(OF_A), again] and state.running is OF_B
    assert state.decision == "decided"
    # Nothing else: neither an error nor another answer ends the plan in use.
    events: list[tuple[Event, ...]] = [
        (PlanMade("no memory"),),
        (PlanMade(None), PlanMade("could not be kept")),
        (PlanMade(None), Unusable("it does not start")),
        (PlanMade(None), CacheSearched(B), Started(B, None, "its outputs differ")),
    ]
    for each in events:
        state, actions = after(*each, state=opened)
        assert state.running is OF_A and state.reason is None and state.task is None, each
        assert actions == []


@pytest.mark.parametrize(
    "events",
    [
        (Requested(), CacheSearched(None), PlanMade("why")),
        (Requested(), CacheSearched(None), PlanMade(None), PlanMade("why")),
        (Requested(), CacheSearched(A), Started(A, None, "why")),
        (Requested(), Unusable("why")),
        (CacheSearched(A), Started(A, OF_A), Failed(OF_A, "why")),
    ],
)
def test_without_a_plan_the_reason_is_kept_and_nothing_more_is_tried(
    events: tuple[Event, ...],
) -> None:
    state, _ = after(*events)
    assert state.running is None and state.reason == "why"
    assert state.is_decided and not state.is_busy and not state.keeps_requests
    assert after(TimeSpent(1e3, None), state=state)[1] == []


def test_a_plan_for_another_engine_takes_the_place_of_one_that_has_failed() -> None:
    failed = Failed(OF_A, "why", goes_on=True)
    state, actions = after(CacheSearched(A), Started(A, OF_A), failed)
    assert actions == [Cancel(), Switch(OF_A), SearchCache(LIMITS.look_s)]
    assert state.running is None and state.reason == "why" and state.is_busy
    later, _ = after(CacheSearched(None), PlanMade(None), CacheSearched(B), state=state)
    answered, _ = after(Started(B, OF_B), state=later)
    assert answered.running is OF_B and answered.reason is None
    ended, _ = after(CacheSearched(None), PlanMade("no such device"), state=state)
    assert ended.is_decided and ended.reason == "no such device" and not ended.is_busy


def test_requests_of_new_shapes_are_planned_when_they_are_worth_it() -> None:
    few, actions = after(TimeSpent(LIMITS.cheap_s / 2, None))
    assert actions == [] and few.reason is not None and "more requests" in few.reason
    looked, actions = after(TimeSpent(LIMITS.cheap_s, None), state=few)
    assert actions == [SearchCache()] and looked.is_busy and not looked.keeps_requests
    state, actions = after(CacheSearched(None), TimeSpent(LIMITS.cheap_s, None), state=looked)
    assert actions == [] and state.task is None  # it looks once
    state, actions = after(TimeSpent(LIMITS.worth_s, None), state=state)
    assert actions == [SearchCache(LIMITS.look_s)] and state.task == "look, then plan"
    assert after(TimeSpent(1.0, None), state=state)[1] == []
    # A plan of the settings is for its shapes only.
    state, actions = after(TimeSpent(1e3, "plan p.json"))
    assert actions == [] and state.reason == "plan p.json was made for other shapes"


def test_a_plan_waits_for_requests_also_while_its_choice_is_open() -> None:
    """The comparison does not wait for the next pass of an open choice."""
    waits = Started(A, None, "made-up inputs do not run", waits=True)
    state, actions = after(CacheSearched(A, is_open=True), waits)
    assert state.pending is A and state.keeps_requests and state.task == "plan again"
    comparing, actions = after(EnoughRequests(), state=state)
    assert actions == [Start(A, in_background=True)] and comparing.is_busy
    assert after(EnoughRequests(), state=comparing)[1] == []
    state, actions = after(Started(A, OF_A), state=comparing)
    assert actions == [Switch(None)] and state.running is OF_A and state.task == "plan again"
    assert not state.keeps_requests
    state, _ = after(Started(A, None, "it differs"), state=comparing)
    assert state.reason == "it differs" and state.pending is None


def test_a_failure_is_of_a_plan_that_answers() -> None:
    state = replace(PlanState(), task="look")
    assert after(Failed(OF_A, "why"), state=state) == (state, [])
    state, actions = after(CacheSearched(A, is_open=True), Started(A, OF_A), Failed(OF_A, "why"))
    assert actions == [Cancel(), Switch(OF_A)] and state.task is None
    # The plan that fails was replaced meanwhile.
    state, _ = after(CacheSearched(A), Started(A, OF_A), CacheSearched(B), Started(B, OF_B))
    assert after(Failed(OF_A, "why"), state=state) == (state, [])


@pytest.mark.parametrize(
    "late",
    [PlanMade(None), PlanMade("no memory"), CacheSearched(B, is_open=True), Unusable("late")],
)
def test_a_result_that_comes_after_a_failure_changes_nothing(late: Event) -> None:
    opened = after(CacheSearched(A, is_open=True), Started(A, OF_A))[0]
    failed, _ = after(Failed(OF_A, "why"), state=opened)
    assert after(late, state=failed) == (failed, [])
    assert after(Started(B, OF_B), state=failed) == (failed, [Switch(OF_B)])  # it is closed
