"""When a pipeline's plan is replaced: states and events in, actions out, without a clock."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.pipeline.cluster.handles import FrameAnswer, FrameFailure, Unreached
from coexec.pipeline.cluster.limits import Limits
from coexec.pipeline.cluster.supervision import (
    Action,
    CancelDeployment,
    Close,
    Compared,
    DeliverAnswer,
    Deploy,
    Deployed,
    Deploying,
    Event,
    FailFrame,
    FrameRate,
    Heard,
    Improve,
    Infeasible,
    LeaveOut,
    Lost,
    MachinesJoined,
    MeasureLoad,
    MeasureSpeeds,
    NotDeployed,
    Recover,
    Resend,
    RunningPlan,
    Speeds,
    SupervisionState,
    TimeToLook,
    TryQuickPlans,
    next_actions,
)
from tests.helpers.examples import scaled

LIMITS = Limits()
PATIENCE_S = 2 * LIMITS.silence_s
NAMES = ("a", "b", "c")


def planned(*machines: str, at_once: int | None = None, latency_s: float = 0.1) -> Any:
    """What is read of a plan."""
    plan = SimpleNamespace(machines=machines, at_once=at_once)
    return SimpleNamespace(plan=plan, latency_s=latency_s)


def after(
    *events: Event, state: SupervisionState | None = None
) -> tuple[SupervisionState, tuple[Action, ...]]:
    """The state after all events, and the actions of the last one."""
    state, actions = state or SupervisionState(), ()
    for event in events:
        state, actions = next_actions(state, event, LIMITS)
    return state, actions


def running(now_s: float = 100.0, epoch: int = 1, **facts: Any) -> SupervisionState:
    """Three machines whose plan was deployed at ``now_s``."""
    plan = planned(*NAMES, **facts)
    return after(MachinesJoined(NAMES), Deployed(RunningPlan(epoch, plan), now_s))[0]


def test_a_lost_machine_is_left_out_at_the_next_look() -> None:
    state, actions = after(Lost("b", "is gone"), state=running())
    assert actions == ()
    state, actions = after(TimeToLook(100.5, 3), state=state)
    assert actions == (LeaveOut(("b",)), Recover("b is gone"))
    assert state.members == {"a", "c"}


def test_a_loss_ends_a_deployment_that_may_need_the_machine() -> None:
    _, actions = after(Deploying(), Lost("b", "is gone"), state=running())
    assert actions == (CancelDeployment(),)


def test_recovery_is_tried_again_until_a_plan_runs() -> None:
    state, _ = after(Lost("a", "is gone"), TimeToLook(101, 1), Deploying(), state=running())
    state, actions = after(Lost("b", "is silent"), NotDeployed(), TimeToLook(101.3, 1), state=state)
    assert actions == (LeaveOut(("b",)), Recover("a is gone; b is silent"))
    state, _ = after(Deployed(RunningPlan(2, planned("c")), 101.5, is_hasty=True), state=state)
    assert after(TimeToLook(101.6, 1), state=state)[1] == ()


def test_no_machine_is_left() -> None:
    state = after(MachinesJoined(("a",)), Deployed(RunningPlan(1, planned("a")), 1.0))[0]
    _, (leave, close) = after(Lost("a", "is gone"), TimeToLook(2, 1), state=state)
    assert leave == LeaveOut(("a",))
    assert isinstance(close, Close)
    assert "no machine of the cluster is left: a is gone" in str(close.error)


def test_others_that_cannot_run_the_model_close_the_session() -> None:
    state, _ = after(Lost("a", "is gone"), TimeToLook(101, 1), state=running())
    _, (close,) = after(Infeasible("too large"), state=state)
    assert isinstance(close, Close)
    assert str(close.error) == "a is gone; the others cannot run the model: too large"


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_answers_count_of_any_epoch_and_failures_of_this_one(epoch: int) -> None:
    events = (FrameAnswer(epoch, 7, {"y": 1}), FrameFailure(epoch, 8, "a: no"))
    _, actions = after(Heard("a", events, 0.0, 101.0), state=running())
    assert actions[0] == DeliverAnswer(7, {"y": 1})
    failed = [a.frame for a in actions if isinstance(a, FailFrame)]
    assert failed == ([8] if epoch == 1 else [])


def test_a_machine_that_others_cannot_reach_is_blamed_before_one_that_computes() -> None:
    unreached = Heard("a", (Unreached(1, "c", "late"),), 0.0, 101.0)
    busy = Heard("b", (), 99.0, 101.0)
    now_s = 100.0 + PATIENCE_S + 0.1
    _, actions = after(unreached, busy, TimeToLook(now_s, 1), state=running())
    assert actions[0] == LeaveOut(("c",))
    _, actions = after(busy, TimeToLook(now_s, 1), state=running())
    assert actions[0] == LeaveOut(("b",))


def test_an_answer_clears_complaints() -> None:
    unreached = Heard("a", (Unreached(1, "c", "late"),), 0.0, 101.0)
    answer = Heard("b", (FrameAnswer(1, 0, {}),), 0.0, 102.0)
    _, actions = after(unreached, answer, TimeToLook(103.0 + PATIENCE_S, 1), state=running())
    assert actions[0] == Resend(f"no answer for {PATIENCE_S:.1f} s")


@pytest.mark.parametrize(("inside", "waits_s"), [(0, 1000.0), (1, PATIENCE_S - 0.1)])
def test_frames_are_not_sent_again_without_need(inside: int, waits_s: float) -> None:
    _, actions = after(TimeToLook(100.0 + waits_s, inside), state=running())
    assert not any(isinstance(action, Resend | LeaveOut) for action in actions)


def test_patience_grows_with_the_latency_of_the_plan() -> None:
    slow = running(latency_s=10.0)
    assert not any(isinstance(a, Resend) for a in after(TimeToLook(149.0, 1), state=slow)[1])
    assert any(isinstance(a, Resend) for a in after(TimeToLook(151.0, 1), state=slow)[1])


def test_a_plan_rests_before_it_is_improved() -> None:
    early, late = 100.0 + LIMITS.rest_s - 0.1, 100.0 + LIMITS.rest_s + 0.1
    assert after(TimeToLook(early, 0), state=running())[1] == ()
    assert after(TimeToLook(late, 0), state=running())[1] == (MeasureSpeeds(), MeasureLoad())


def test_a_machine_that_joins_ends_the_rest() -> None:
    state, actions = after(MachinesJoined(("d",)), state=running())
    assert actions == (Improve("d joined"),)
    assert state.has_rested(100.1, LIMITS)


def test_a_hasty_plan_is_improved_once() -> None:
    hasty = after(Deployed(RunningPlan(2, planned(*NAMES)), 100.0, is_hasty=True), state=running())[
        0
    ]
    hasty, actions = after(Speeds(drifted=False), state=hasty)
    assert actions == (Improve("there was time to plan"),)
    assert after(Speeds(drifted=False), state=hasty)[1] == ()
    assert after(Speeds(drifted=True), state=hasty)[1] != ()


@pytest.mark.parametrize(("other_s", "is_taken"), [(0.89, True), (0.91, False), (1.5, False)])
def test_another_plan_is_taken_if_it_gains_a_margin(other_s: float, is_taken: bool) -> None:
    other = planned("a")
    state, actions = after(Compared("why", other, 1.0, other_s, 200.0), state=running())
    assert actions == ((Deploy("why", other),) if is_taken else ())
    assert is_taken or not state.has_rested(200.1, LIMITS)


def test_the_rate_of_frames_decides_between_latency_and_throughput() -> None:
    assert after(FrameRate(2.0, is_high=False), state=running())[1] == (TryQuickPlans(2.0),)
    assert after(FrameRate(9.0, is_high=True), state=running())[1] == ()
    one_frame = running(at_once=1)
    improve = (Improve("9.0 frames a second come"),)
    assert after(FrameRate(9.0, is_high=True), state=one_frame)[1] == improve


events = st.one_of(
    st.builds(Lost, st.sampled_from(NAMES), st.just("is gone")),
    st.builds(MachinesJoined, st.sampled_from([("a",), ("b", "c"), ()])),
    st.builds(
        Heard,
        st.sampled_from(NAMES),
        st.lists(
            st.one_of(
                st.builds(FrameAnswer, st.integers(0, 3), st.integers(0, 5), st.just({})),
                st.builds(FrameFailure, st.integers(0, 3), st.integers(0, 5), st.just("no")),
                st.builds(Unreached, st.integers(0, 3), st.sampled_from(NAMES), st.just("late")),
            ),
            max_size=3,
        ).map(tuple),
        st.floats(0, 100),
        st.floats(0, 1000),
    ),
    st.builds(TimeToLook, st.floats(0, 1000), st.integers(0, 3)),
    st.just(Deploying()),
    st.just(NotDeployed()),
    st.builds(
        lambda epoch, machines, now_s: Deployed(RunningPlan(epoch, planned(*machines)), now_s),
        st.integers(0, 3),
        st.sampled_from([("a",), ("b", "c"), NAMES]),
        st.floats(0, 1000),
    ),
    st.builds(Infeasible, st.just("too large")),
    st.builds(Speeds, st.booleans()),
    st.builds(FrameRate, st.floats(0, 10), st.booleans()),
)


@settings(max_examples=scaled(300), deadline=None)
@given(st.lists(events, max_size=30))
def test_any_order_of_events_keeps_the_invariants(sequence: list[Event]) -> None:
    state = SupervisionState()
    for event in sequence:
        before, (state, actions) = state, next_actions(state, event, LIMITS)
        assert set(state.lost) <= state.members  # a loss is only of a member
        assert not state.causes or state.members  # without members there is nothing to recover
        if isinstance(event, TimeToLook):
            assert not state.lost
            left_out = {m for a in actions if isinstance(a, LeaveOut) for m in a.machines}
            assert left_out == before.members - state.members
        if any(isinstance(action, Recover) for action in actions):
            assert state.members and state.causes
        assert sum(isinstance(a, Close | Recover | Deploy) for a in actions) <= 1
