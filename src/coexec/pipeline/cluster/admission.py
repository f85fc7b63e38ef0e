"""The entrance of a pipeline: it admits frames, keeps them until they are answered, and delivers
each answer once.

Inference has no side effects, so a frame that was lost with a machine is sent again. For this, the
door keeps its inputs.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from coexec.errors import BusyError, ClosedError, CoexecError, ExecutionError

__all__ = ["Door", "Frame"]


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
