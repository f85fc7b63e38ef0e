"""The entrance of a pipeline: it admits frames, keeps them until they are answered, and delivers
each answer once. And an estimate of the rate at which frames arrive.

Inference has no side effects, so a frame that was lost with a machine is sent again. For this, the
door keeps its inputs.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coexec.errors import BusyError, ClosedError, CoexecError, ExecutionError
from coexec.pipeline.cluster.planning import Planned

_FEW = 8
"""Number of frames that is enough to estimate their rate."""
_WINDOW_S = 60.0
"""Longest time between samples: frames that are further apart change no plan."""
_LOADED = 0.6
"""Load from which on throughput matters, not latency. The load is the share of the time in which no
credit is left, or the frame rate times the plan's period."""


@dataclass(eq=False)
class Frame:
    """A frame that was admitted."""

    number: int
    feeds: Mapping[str, Any]
    admitted_s: float
    """`time.monotonic` at its admission."""
    deadline_s: float
    """`time.monotonic` by which it must be answered; `math.inf` for no deadline."""
    answer: "Future[dict[str, Any]]" = field(default_factory=Future)


class Door:
    """Admits at most as many frames at a time as there are credits. May be used by several
    threads."""

    def __init__(self, credits: int) -> None:
        self._limit = credits
        self._inside: dict[int, Frame] = {}
        """Unanswered frames by number, in order of admission."""
        self._next = 0
        self._refusal: CoexecError | None = None
        self._changed = threading.Condition()
        self.most_inside = 0
        """The most frames that were in flight at the same time."""
        self.answered = 0

    @property
    def admitted(self) -> int:
        """Number of frames admitted so far."""
        return self._next

    @property
    def full(self) -> bool:
        """Whether no credit is left, or only the last one of several."""
        return len(self._inside) >= max(1, self._limit - 1)

    def admit(self, feeds: Mapping[str, Any], deadline_s: float, wait: bool = True) -> Frame:
        """Admit a frame, with the next number.

        Args:
            deadline_s: `time.monotonic` by which it must be answered.
            wait: wait for a credit until the deadline; otherwise refuse the frame if none is left.

        Raises:
            BusyError: no credit is left, or none became free until the deadline.
            ClosedError: the door is closed.
        """
        with self._changed:
            while self._refusal is None and len(self._inside) >= self._limit:
                left = deadline_s - time.monotonic()
                if not wait or left <= 0:
                    raise BusyError(
                        f"no credit is left: {self._limit} frames are inside; try again when one "
                        f"of them is answered, or allow more credits"
                    )
                self._changed.wait(min(left, 1.0))
            if self._refusal is not None:
                raise type(self._refusal)(*self._refusal.args)
            frame = Frame(self._next, feeds, time.monotonic(), deadline_s)
            self._next += 1
            self._inside[frame.number] = frame
            self.most_inside = max(self.most_inside, len(self._inside))
            return frame

    def limit(self, credits: int) -> None:
        """Set the number of credits, from the next frame on."""
        with self._changed:
            self._limit = credits
            self._changed.notify_all()

    @property
    def is_open(self) -> bool:
        """Whether frames are admitted."""
        return self._refusal is None

    @property
    def credits(self) -> int:
        """Maximum number of frames in flight."""
        return self._limit

    def inside(self) -> list[Frame]:
        """Unanswered frames, in order of admission."""
        with self._changed:
            return list(self._inside.values())

    def answer(self, number: int, outputs: dict[str, Any]) -> bool:
        """Deliver an answer; False if the frame was answered already or given up."""
        frame = self._leave(number)
        if frame is not None:
            self.answered += 1
            frame.answer.set_result(outputs)
        return frame is not None

    def fail(self, number: int, error: Exception) -> bool:
        """Give up a frame with an error; False if it was answered already."""
        frame = self._leave(number)
        if frame is not None:
            frame.answer.set_exception(error)
        return frame is not None

    def fail_late(self) -> int:
        """Give up all frames whose deadlines have passed; return their number."""
        now = time.monotonic()
        late = [frame for frame in self.inside() if frame.deadline_s <= now]
        for frame in late:
            elapsed_s = now - frame.admitted_s
            self.fail(
                frame.number,
                ExecutionError(
                    f"frame {frame.number} was not answered within {elapsed_s:.1f} s; "
                    f"allow more time (deadline_s), or look at `coexec cluster status`"
                ),
            )
        return len(late)

    def close(self, refusal: CoexecError | None = None) -> None:
        """Refuse further frames, and give up those in flight. May be called again."""
        with self._changed:
            self._refusal = (
                self._refusal
                or refusal
                or ClosedError("the cluster's session is closed; make a new one")
            )
            self._changed.notify_all()
        for frame in self.inside():
            self.fail(frame.number, self._refusal)

    def _leave(self, number: int) -> Frame | None:
        with self._changed:
            frame = self._inside.pop(number, None)
            self._changed.notify_all()
        if frame is not None and not frame.answer.set_running_or_notify_cancel():
            return None
        return frame


class Demand(NamedTuple):
    """Recent demand."""

    rate_per_s: float
    full: float
    """Share of the samples in which the door was full."""

    def is_high(self, planned: Planned) -> bool:
        """Whether the plan's period matters more than its latency."""
        return self.full > _LOADED or self.rate_per_s * planned.period_s > _LOADED


class DemandWatch:
    """Estimates the demand from samples of a door's state."""

    def __init__(self, door: Door, least_s: float) -> None:
        """``least_s``: the shortest time from which a rate is estimated."""
        self._door, self._least_s = door, least_s
        self._seen: deque[tuple[float, int, bool]] = deque()
        """Samples: time, number of frames admitted so far, and whether the door was full."""

    def look(self) -> None:
        """Take a sample, and remove samples that are older than an estimate needs."""
        now, admitted = time.monotonic(), self._door.admitted
        self._seen.append((now, admitted, self._door.full))
        while len(self._seen) > 1:
            begin, before, _ = self._seen[1]
            enough = admitted - before >= _FEW and now - begin >= self._least_s
            if not enough and now - begin <= _WINDOW_S:
                break
            self._seen.popleft()

    def clear(self) -> None:
        """Remove all samples: during a change of plan, frames wait for another reason."""
        self._seen.clear()

    def demand(self) -> Demand | None:
        """Demand of the samples; None if too few frames came for an estimate."""
        if not self._seen:
            return None
        (begin, before, _), (end, admitted, _) = self._seen[0], self._seen[-1]
        if admitted - before < _FEW or end - begin < self._least_s:
            return None
        full = sum(full for _, _, full in self._seen) / len(self._seen)
        return Demand((admitted - before) / (end - begin), full)
