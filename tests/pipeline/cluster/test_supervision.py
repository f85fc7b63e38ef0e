"""When a pipeline's plan is replaced: states and events in, actions out, without a clock."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.pipeline.cluster.handles import FrameAnswer, FrameFailure, Unreached
from coexec.pipeline.cluster.supervision import (
    Close,
    Deployment,
    FrameEnd,
    Limits,
    Reaction,
    SupervisionState,
    after_a_look,
    after_deploying,
    after_joining,
    after_loss,
    after_measuring,
    after_news,
    after_refusal,
    gains,
)
from tests.helpers.examples import scaled

LIMITS = Limits()
PATIENCE_S = 2 * LIMITS.silence_s
NAMES = ("a", "b", "c")


def planned(*machines: str, at_once: int | None = None, latency_s: float = 0.1) -> Any:
    """What is read of a plan."""
    plan = SimpleNamespace(machines=machines, at_once=at_once)
    return SimpleNamespace(plan=plan, latency_s=latency_s)


def running(now_s: float = 100.0, epoch: int = 1, **facts: Any) -> SupervisionState:
    """Three machines whose plan was deployed at ``now_s``."""
    members = after_joining(SupervisionState(), NAMES)[0]
    return after_deploying(members, Deployment(epoch, planned(*NAMES, **facts)), now_s)


def lost(state: SupervisionState, name: str, reason: str = "is gone") -> SupervisionState:
    return after_loss(state, name, reason)[0]


def look(
    state: SupervisionState, now_s: float, inside: int = 1
) -> tuple[SupervisionState, tuple[Reaction | Close, ...]]:
    return after_a_look(state, now_s, inside, LIMITS)


def kinds(actions: tuple[Reaction | Close, ...]) -> list[str]:
    return [action.kind if isinstance(action, Reaction) else "close" for action in actions]


def test_a_lost_machine_is_left_out_at_the_next_look() -> None:
    state, actions = after_loss(running(), "b", "is gone")
    assert actions == ()
    state, actions = look(state, 100.5, 3)
    assert actions == (Reaction("leave out", machines=("b",)), Reaction("recover", "b is gone"))
    assert state.members == {"a", "c"}


def test_a_loss_ends_a_deployment_that_may_need_the_machine() -> None:
    _, actions = after_loss(replace(running(), is_deploying=True), "b", "is gone")
    assert actions == (Reaction("cancel deployment"),)


def test_recovery_is_tried_again_until_a_plan_runs() -> None:
    state, _ = look(lost(running(), "a"), 101)
    state, actions = look(lost(state, "b", "is silent"), 101.3)
    why = "a is gone; b is silent"
    assert actions == (Reaction("leave out", machines=("b",)), Reaction("recover", why))
    state = after_deploying(state, Deployment(2, planned("c")), 101.5, is_hasty=True)
    assert look(state, 101.6)[1] == ()


def test_no_machine_is_left() -> None:
    state = after_joining(SupervisionState(), ("a",))[0]
    state = after_deploying(state, Deployment(1, planned("a")), 1.0)
    _, (leave, close) = look(lost(state, "a"), 2)
    assert leave == Reaction("leave out", machines=("a",))
    assert isinstance(close, Close)
    assert "no machine of the cluster is left: a is gone" in str(close.error)


def test_others_that_cannot_run_the_model_close_the_session() -> None:
    state, _ = look(lost(running(), "a"), 101)
    _, (close,) = after_refusal(state, "too large")
    assert isinstance(close, Close)
    assert str(close.error) == "a is gone; the others cannot run the model: too large"


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_answers_count_of_any_epoch_and_failures_of_this_one(epoch: int) -> None:
    events = (FrameAnswer(epoch, 7, {"y": 1}), FrameFailure(epoch, 8, "a: no"))
    _, ends = after_news(running(), "a", events, 0.0, 101.0)
    assert ends[0] == FrameEnd(7, {"y": 1})
    assert [end.frame for end in ends[1:]] == ([8] if epoch == 1 else [])


def test_a_machine_that_others_cannot_reach_is_blamed_before_one_that_computes() -> None:
    now_s = 100.0 + PATIENCE_S + 0.1
    busy, _ = after_news(running(), "b", (), 99.0, 101.0)
    assert look(busy, now_s)[1][0] == Reaction("leave out", machines=("b",))
    unreached, _ = after_news(busy, "a", (Unreached(1, "c", "late"),), 0.0, 101.0)
    assert look(unreached, now_s)[1][0] == Reaction("leave out", machines=("c",))


def test_an_answer_clears_complaints() -> None:
    state, _ = after_news(running(), "a", (Unreached(1, "c", "late"),), 0.0, 101.0)
    state, _ = after_news(state, "b", (FrameAnswer(1, 0, {}),), 0.0, 102.0)
    resend = Reaction("resend", f"no answer for {PATIENCE_S:.1f} s")
    assert look(state, 103.0 + PATIENCE_S)[1][0] == resend


@pytest.mark.parametrize(("inside", "waits_s"), [(0, 1000.0), (1, PATIENCE_S - 0.1)])
def test_frames_are_not_sent_again_without_need(inside: int, waits_s: float) -> None:
    assert {"resend", "leave out"}.isdisjoint(kinds(look(running(), 100.0 + waits_s, inside)[1]))


def test_patience_grows_with_the_latency_of_the_plan() -> None:
    slow = running(latency_s=10.0)
    assert "resend" not in kinds(look(slow, 149.0)[1])
    assert "resend" in kinds(look(slow, 151.0)[1])


def test_a_plan_rests_before_it_is_improved() -> None:
    assert look(running(), 100.0 + LIMITS.rest_s - 0.1, 0)[1] == ()
    assert look(running(), 100.0 + LIMITS.rest_s + 0.1, 0)[1] == (Reaction("measure"),)


def test_a_machine_that_joins_ends_the_rest() -> None:
    state, actions = after_joining(running(), ("d",))
    assert actions == (Reaction("improve", "d joined"),)
    assert state.has_rested(100.1, LIMITS)


def test_a_hasty_plan_is_improved_once() -> None:
    hasty = after_deploying(running(), Deployment(2, planned(*NAMES)), 100.0, is_hasty=True)
    hasty, actions = after_measuring(hasty, drifted=False)
    assert actions == (Reaction("improve", "there was time to plan"),)
    assert after_measuring(hasty, drifted=False)[1] == ()
    assert after_measuring(hasty, drifted=True)[1] != ()


@pytest.mark.parametrize(("other_s", "is_taken"), [(0.89, True), (0.91, False), (1.5, False)])
def test_another_plan_is_taken_if_it_gains_a_margin(other_s: float, is_taken: bool) -> None:
    assert gains(1.0, other_s, LIMITS) == is_taken


names = st.sampled_from(NAMES)
numbers = st.integers(0, 3)
times = st.floats(0, 1000)
news = st.one_of(
    st.builds(FrameAnswer, numbers, st.integers(0, 5), st.just({})),
    st.builds(FrameFailure, numbers, st.integers(0, 5), st.just("no")),
    st.builds(Unreached, numbers, names, st.just("late")),
)
plans = st.builds(
    lambda epoch, machines: Deployment(epoch, planned(*machines)),
    numbers,
    st.sampled_from([("a",), ("b", "c"), NAMES]),
)
events = st.one_of(
    st.builds(partial(partial, after_loss), machine=names, reason=st.just("is gone")),
    st.builds(partial(partial, after_joining), machines=st.sampled_from([("a",), ("b", "c"), ()])),
    st.builds(
        partial(partial, after_news),
        machine=names,
        events=st.lists(news, max_size=3),
        computing_s=st.floats(0, 100),
        now_s=times,
    ),
    st.builds(partial(partial, after_a_look), now_s=times, inside=numbers, limits=st.just(LIMITS)),
    st.builds(partial(partial, replace), is_deploying=st.booleans()),
    st.builds(partial(partial, after_deploying), running=plans, now_s=times),
    st.builds(partial(partial, after_refusal), reason=st.just("too large")),
    st.builds(partial(partial, after_measuring), drifted=st.booleans()),
)


@settings(max_examples=scaled(300), deadline=None)
@given(st.lists(events, max_size=30))
def test_any_order_of_events_keeps_the_invariants(sequence: list[partial[Any]]) -> None:
    state = SupervisionState()
    for event in sequence:
        before, found = state, event(state)
        state, actions = found if isinstance(found, tuple) else (found, ())
        assert set(state.lost) <= state.members  # a loss is only of a member
        assert not state.causes or state.members  # without members there is nothing to recover
        if event.func is after_a_look:
            assert not state.lost
            left_out = {m for a in actions if isinstance(a, Reaction) for m in a.machines}
            assert left_out == before.members - state.members
        if event.func is after_news:
            continue  # frames that end
        if "recover" in kinds(actions):
            assert state.members and state.causes
        assert sum(kind in ("close", "recover") for kind in kinds(actions)) <= 1
