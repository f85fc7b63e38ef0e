"""A session goes on while machines die, fall silent, hang, join and slow down: answers are right,
once each, and in order."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from coexec.errors import BusyError, ClosedError, ExecutionError, InputError, UsageError
from coexec.model.model import Model
from coexec.model.reference_session import plain_session
from coexec.pipeline.cluster.session import ClusterSession
from tests.helpers.local_team import LocalTeam, convolutions, local_session
from tests.helpers.patience import ENOUGH_S

pytestmark = pytest.mark.alone

PACE = 4e7
"""FLOP/s of a machine: a layer of the network below takes it 12 ms."""
Frames = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def model() -> Model:
    return convolutions(6)


@pytest.fixture(scope="module")
def frames(model: Model) -> Frames:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 8, 24, 18), dtype=np.float32)} for _ in range(60)]


def answers_are_right(
    model: Model,
    session: ClusterSession,
    frames: Frames,
    between: Mapping[int, Callable[[], Any]] = MappingProxyType({}),
) -> None:
    """Send all frames; before some of them something happens."""
    reference, before = plain_session(model.source, 1), session.status().answered

    def coming() -> Iterator[Mapping[str, Any]]:
        for index, frame in enumerate(frames):
            between.get(index, lambda: None)()
            yield frame

    count = 0
    for frame, outputs in zip(frames, session.map(coming()), strict=True):
        (wanted,) = reference.run(None, dict(frame))
        np.testing.assert_allclose(outputs["t5"], wanted, rtol=1e-4, atol=1e-4)
        count += 1
    assert count == len(frames) == session.status().answered - before


def paces(count: int, pace: float = PACE) -> dict[str, float]:
    return {f"m{index}": pace for index in range(count)}


def test_a_machine_that_dies_costs_no_answer(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(3))
    with local_session(model, team) as session:
        lost = session.plan.stages[1].leader

        def die() -> None:
            team.handles[lost].dead = True

        answers_are_right(model, session, frames, {20: die})
        assert lost not in session.plan.machines
        assert lost in team.dismissed
        assert f"{lost} is gone" in session.status().changes[-1]


def test_a_cluster_that_has_ended_ends_the_session(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(2))
    with local_session(model, team) as session:
        session.run(None, frames[0])
        team.ended = True
        with pytest.raises(ClosedError, match="the head is gone"):
            for _ in session.map(frames * 100):
                pass
        assert not session.ready


@pytest.mark.long
def test_a_machine_that_falls_silent_is_left_out(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(3))
    with local_session(model, team) as session:
        lost = session.plan.stages[1].leader

        def cut() -> None:
            team.handles[lost].silent = True

        answers_are_right(model, session, frames, {20: cut})
        assert f"{lost} was not heard of for 1.5 s" in session.status().changes[-1]


@pytest.mark.long
def test_the_first_leader_and_all_but_one_may_die(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(3))
    with local_session(model, team) as session:

        def die() -> None:
            team.handles[session.plan.stages[0].leader].dead = True

        answers_are_right(model, session, frames, {15: die, 35: die})
        assert len(session.plan.machines) == 1


def test_when_the_last_machine_dies_all_frames_are_given_up(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(1))
    with local_session(model, team) as session:
        answer = session.submit(frames[0])
        team.handles["m0"].dead = True
        with pytest.raises(ClosedError, match="no machine of the cluster is left: m0 is gone"):
            answer.result(ENOUGH_S)
        with pytest.raises(ClosedError, match="no machine of the cluster is left"):
            session.submit(frames[0])


def test_a_machine_that_joins_makes_it_faster(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(1))
    with local_session(model, team) as session:
        before = session.status().predicted_period_s

        def join() -> None:
            team.paces["m9"] = PACE

        answers_are_right(model, session, frames, {5: join})
        assert set(session.plan.machines) == {"m0", "m9"}
        assert session.status().predicted_period_s < 0.6 * before


@pytest.mark.long
def test_a_machine_that_slows_down_gets_less_to_do(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(2))
    with local_session(model, team) as session:
        before = work(session)

        def slow() -> None:
            options = team.handles["m1"].machine._options
            object.__setattr__(options, "pace_flops_per_s", PACE / 4)

        answers_are_right(model, session, [*frames, *frames], {10: slow})
        assert work(session)["m1"] < 0.6 * before["m1"]
        assert "faster or slower than thought" in session.status().changes[-1]


@pytest.mark.long
def test_a_link_that_slows_down_is_spared(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(3))
    with local_session(model, team) as session:
        slow = session.plan.stages[1].leader

        def slow_down() -> None:
            for handle in team.handles.values():
                handle.bytes_per_s = 1e8
            team.handles[slow].bytes_per_s = 6e4

        answers_are_right(model, session, [*frames, *frames], {10: slow_down})
        changes = session.status().changes
        assert any("messages take long" in line for line in changes), changes
        assert slow not in session.plan.machines


@pytest.mark.long
def test_few_frames_are_answered_by_all_machines_together(model: Model, frames: Frames) -> None:
    with local_session(model, LocalTeam(paces(4)), latency_s=0.002) as session:
        pipeline_s = session.status().predicted_latency_s
        assert session.plan.at_once is None
        for frame in frames[:30]:
            answers_are_right(model, session, [frame])
            time.sleep(0.15)
        assert session.plan.at_once == 1
        assert session.status().predicted_latency_s < 0.9 * pipeline_s
        answers_are_right(model, session, [*frames, *frames, *frames])
        assert session.plan.at_once is None


def work(session: ClusterSession) -> dict[str, float]:
    """By machine, the share of all rows that it computes."""
    found: dict[str, float] = dict.fromkeys(session.plan.machines, 0.0)
    for stage in session.plan.stages:
        for share in stage.shares:
            size = sum(region.size for _, region in share.outputs)
            found[share.machine] += size * len(stage.tasks)
    return {name: size / sum(found.values()) for name, size in found.items()}


@pytest.mark.long
def test_one_that_others_cannot_reach_is_left_out(model: Model, frames: Frames) -> None:
    """Its own words are heard, but messages of other machines do not arrive."""
    team = LocalTeam(paces(3))
    with local_session(model, team) as session:
        lost = session.plan.stages[1].leader

        def break_links() -> None:
            handle = team.handles[lost]

            async def call(method: str, *args: Any) -> Any:
                if method == "receive":
                    raise_lost()
                return await type(handle).call(handle, method, *args)

            handle.call = call  # type: ignore[method-assign]

        answers_are_right(model, session, frames, {20: break_links})
        assert f"{lost} could not be reached by others" in session.status().changes[-1]


def raise_lost() -> None:
    from coexec.pipeline.cluster.handles import MachineLostError

    raise MachineLostError("no route")


def test_a_slow_consumer_holds_frames_back(model: Model, frames: Frames) -> None:
    taken = 0

    def coming() -> Iterator[Mapping[str, Any]]:
        nonlocal taken
        for frame in frames:
            taken += 1
            yield frame

    with local_session(model, LocalTeam(paces(2)), credits=3) as session:
        for index, _ in enumerate(session.map(coming())):
            if index % 20 == 0:
                time.sleep(0.3)
            assert taken <= index + 1 + 3 + 1
        assert session.status().most_inside <= 3


def test_a_frame_that_takes_too_long_fails_alone(model: Model, frames: Frames) -> None:
    with local_session(model, LocalTeam(paces(2))) as session:
        late = session.submit(frames[0], deadline_s=0.001)
        with pytest.raises(ExecutionError, match="frame 0 was not answered within"):
            late.result(ENOUGH_S)
        assert session.run(None, frames[1])[0].shape == (1, 8, 24, 18)


def test_a_session_ends_though_something_in_it_is_not_cancelled_at_once(
    model: Model, frames: Frames
) -> None:
    async def stubborn() -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    session = local_session(model, LocalTeam(paces(2)))
    work = session._conductor.call(stubborn())
    ending = threading.Thread(target=session.close, daemon=True)
    ending.start()
    ending.join(ENOUGH_S)
    assert not ending.is_alive() and work.done()


def test_no_credit_is_said(model: Model, frames: Frames) -> None:
    with local_session(model, LocalTeam(paces(1)), credits=1) as session:
        first = session.submit(frames[0])
        with pytest.raises(BusyError, match="1 frames are inside"):
            session.submit(frames[1])
        first.result(ENOUGH_S)


def test_a_share_that_fails_fails_its_frame_only(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(2))
    with local_session(model, team) as session:
        shares = team.handles["m0"].machine._shares
        run = shares.run

        def once(*args: Any) -> Any:
            shares.run = run  # type: ignore[method-assign]
            raise ExecutionError("the device has burned")

        shares.run = once  # type: ignore[method-assign]
        with pytest.raises(ExecutionError, match="failed on m0: the device has burned"):
            session.run(None, frames[0])
        assert len(session.run(None, frames[1])) == 1


def test_what_cannot_be_is_refused(model: Model, frames: Frames) -> None:
    with local_session(model, LocalTeam(paces(1))) as session:
        with pytest.raises(InputError, match="no input 'y'"):
            session.submit({"x": frames[0]["x"], "y": 1})
        with pytest.raises(UsageError, match="no output 'z'; it has 't5'"):
            session.run(["z"], frames[0])
    with pytest.raises(ClosedError):
        session.submit(frames[0])
    session.close()
    with pytest.raises(ExecutionError, match="the cluster has no machine"):
        local_session(model, LocalTeam({}))
    for options, message in (
        ({"credits": 0}, "credits are at least 1"),
        ({"deadline_s": 0.0}, "deadline_s is above 0"),
        ({"planner": "nobody"}, "nobody"),
    ):
        with pytest.raises(UsageError, match=message):
            local_session(model, LocalTeam(paces(1)), **options)


def test_weights_of_other_shares_stay_away(model: Model, frames: Frames) -> None:
    team = LocalTeam(paces(3))
    with local_session(model, team) as session:
        for name in session.plan.machines:
            tasks = {t for s in session.plan.stages if name in s.machines for t in s.tasks}
            kept = team.handles[name].machine._shares._kept
            assert len(kept) == len(tasks)
        with suppress(StopIteration):
            next(session.map(frames))
