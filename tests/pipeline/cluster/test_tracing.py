"""Traces of a session: what machines did when, on the clock of the caller."""

import json
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from coexec.errors import ClosedError, UsageError
from coexec.model.model import Model
from coexec.pipeline.cluster.handles import News
from coexec.pipeline.cluster.session import ClusterSession
from coexec.pipeline.cluster.tracing import ClusterTrace
from tests.helpers.local_team import LocalHandle, LocalTeam, convolutions, local_session

PACE = 4e7
FRAMES = 12
AHEAD_S = 1000.0


class SkewedHandle(LocalHandle):
    """A machine whose clock is ahead of ours."""

    async def call(self, method: str, *args: Any) -> Any:
        found = await super().call(method, *args)
        if method == "trace":
            return found + AHEAD_S
        if isinstance(found, News):
            found.at_s += AHEAD_S
            found.spans = [(k, s, f, a + AHEAD_S, b + AHEAD_S) for k, s, f, a, b in found.spans]
        return found


@pytest.fixture(scope="module")
def model() -> Model:
    return convolutions(4)


@pytest.fixture
def session(model: Model) -> Iterator[ClusterSession]:
    with local_session(model, LocalTeam({"a": PACE, "b": PACE})) as session:
        yield session


def traced(session: ClusterSession, count: int) -> tuple[ClusterTrace, float]:
    """A trace of some frames, and how long they took."""
    frame = {"x": np.ones((1, 8, 24, 18), np.float32)}
    session.start_trace()
    start = perf_counter()
    assert len(list(session.map([frame] * count))) == count
    taken_s = perf_counter() - start
    return session.stop_trace(), taken_s


def test_each_share_of_each_frame_is_there_once(session: ClusterSession) -> None:
    trace, taken_s = traced(session, FRAMES)
    shares = sum(len(stage.shares) for stage in session.plan.stages)
    computed = [span for span in trace.spans if span.kind == "compute"]
    assert len(computed) == shares * FRAMES
    assert set(trace.machines) == set(session.plan.machines)
    assert sorted(span.number for span in trace.frames) == list(range(FRAMES))
    for span in trace.spans:
        frame = next(f for f in trace.frames if f.number == span.frame)
        slack_s = trace.clock_error_s[span.machine]
        assert frame.start_s - slack_s <= span.start_s < span.end_s <= frame.end_s + slack_s
    assert all(0 <= frame.start_s < frame.end_s <= taken_s + 1 for frame in trace.frames)


def test_a_file_has_a_process_a_machine_and_no_overlap_on_a_track(session: ClusterSession) -> None:
    trace, _ = traced(session, FRAMES)
    events = json.loads(trace.to_chrome())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names[0] == "frames"
    assert sorted(name.split()[0] for name in names[1:]) == ["a", "b"]
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            span = event["ts"], event["ts"] + event["dur"]
            tracks.setdefault((event["pid"], event["tid"]), []).append(span)
            assert set(event["args"]) == {"frame", "stage"}
    assert len(tracks) == 2  # both compute
    for spans in tracks.values():
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(sorted(spans)))
    opened = [(e["cat"], e["id"]) for e in events if e["ph"] == "b"]
    assert opened == [(e["cat"], e["id"]) for e in events if e["ph"] == "e"]
    assert len(opened) == len(set(opened)) > FRAMES  # one at least sends
    assert sorted(key for category, key in opened if category == "frame") == list(range(FRAMES))


def test_clocks_of_machines_are_told_from_calls(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.helpers.local_team.LocalHandle", SkewedHandle)
    with local_session(model, LocalTeam({"a": PACE, "b": PACE})) as session:
        trace, taken_s = traced(session, FRAMES)
    assert trace.spans
    for span in trace.spans:
        assert -0.5 < span.start_s < span.end_s < taken_s + 0.5  # not 1000 s off
    assert all(error_s < 0.5 for error_s in trace.clock_error_s.values())


def test_a_machine_that_dies_keeps_its_spans(model: Model) -> None:
    team = LocalTeam({"a": PACE, "b": PACE, "c": PACE})
    frame = {"x": np.ones((1, 8, 24, 18), np.float32)}
    with local_session(model, team) as session:
        victim = session.plan.machines[-1]
        session.start_trace()
        list(session.map([frame] * FRAMES))
        team.handles[victim].dead = True
        list(session.map([frame] * FRAMES))
        trace = session.stop_trace()
        assert victim in trace.machines and victim not in session.plan.machines
        assert {span.frame for span in trace.spans} == set(range(2 * FRAMES))


def test_starting_twice_stopping_first_and_closing_are_refused(session: ClusterSession) -> None:
    with pytest.raises(UsageError, match="start_trace"):
        session.stop_trace()
    session.start_trace()
    with pytest.raises(UsageError, match="already"):
        session.start_trace()
    session.stop_trace()
    session.close()
    with pytest.raises(ClosedError):
        session.start_trace()
