"""The front door: credits, numbers, and one answer for each frame."""

import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.errors import BusyError, ClosedError, ExecutionError
from coexec.pipeline.cluster.admission import Door, Frame

Events = list[tuple[str, int]]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["admit", "answer", "fail", "cancel"]), st.integers(0, 9))),
)
def test_every_frame_is_answered_once_and_credits_hold(credits: int, events: Events) -> None:
    door = Door(credits)
    frames: list[Frame] = []
    inside: set[int] = set()
    for kind, number in events:
        if kind == "admit":
            if len(inside) < credits:
                frames.append(door.admit({}, math.inf, wait=False))
                assert frames[-1].number == len(frames) - 1
                inside.add(frames[-1].number)
            else:
                with pytest.raises(BusyError, match=f"{credits} frames are inside"):
                    door.admit({}, math.inf, wait=False)
        elif kind == "cancel":
            if number < len(frames):
                frames[number].answer.cancel()
        else:
            there = number in inside and not frames[number].answer.cancelled()
            if kind == "answer":
                assert door.answer(number, {"n": number}) == there
            else:
                assert door.fail(number, ExecutionError("no")) == there
            inside.discard(number)
        assert [frame.number for frame in door.inside()] == sorted(inside)
    assert door.most_inside <= credits


def test_who_waits_for_a_credit_gets_the_next() -> None:
    door = Door(1)
    first = door.admit({}, math.inf)
    threading.Timer(0.05, door.answer, (first.number, {})).start()
    assert door.admit({}, math.inf).number == 1


def test_who_waits_longer_than_it_may_is_refused() -> None:
    door = Door(1)
    door.admit({}, math.inf)
    with pytest.raises(BusyError, match="no credit is left"):
        door.admit({}, time.monotonic() + 0.05)


def test_a_late_frame_fails_and_leaves_its_credit() -> None:
    door = Door(1)
    late = door.admit({}, time.monotonic())
    assert door.fail_late() == 1
    with pytest.raises(ExecutionError, match="frame 0 was not answered within"):
        late.answer.result()
    assert door.admit({}, math.inf, wait=False).number == 1
    assert door.fail_late() == 0


def test_a_closed_door_gives_up_who_is_inside_and_who_waits() -> None:
    door = Door(1)
    frame = door.admit({}, math.inf)
    threading.Timer(0.05, door.close).start()
    with pytest.raises(ClosedError):
        door.admit({}, math.inf)
    with pytest.raises(ClosedError):
        frame.answer.result()
    door.close()
