"""The front door of a pipeline: it lets frames in, keeps them until they are answered, and hands
answers out once each.

Inference is pure, so a frame that was lost with a machine is sent again. That is why its inputs
stay here.
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
    """A frame that was let in."""

    number: int
    feeds: Mapping[str, Any]
    admitted_s: float
    """`time.monotonic` of the moment when it was let in."""
    deadline_s: float
    """The same clock; `math.inf` if it may take as long as it likes."""
    answer: "Future[dict[str, Any]]" = field(default_factory=Future)


class Door:
    """Counts credits: one for each frame that is inside. May be used by several threads."""

    def __init__(self, credits: int) -> None:
        self._limit = credits
        self._inside: dict[int, Frame] = {}
        """By number, in order."""
        self._next = 0
        self._refusal: CoexecError | None = None
        self._changed = threading.Condition()
        self.most_inside = 0
        """The most frames that were inside together."""
        self.answered = 0

    @property
    def admitted(self) -> int:
        """Frames that were let in so far."""
        return self._next

    @property
    def full(self) -> bool:
        """Whether there is no credit left, or the last of several."""
        return len(self._inside) >= max(1, self._limit - 1)

    def admit(self, feeds: Mapping[str, Any], deadline_s: float, wait: bool = True) -> Frame:
        """Let a frame in, with the next number.

        Args:
            deadline_s: `time.monotonic` by which it is to be answered.
            wait: for a credit, until the deadline; otherwise it is refused if there is none.

        Raises:
            BusyError: there is no credit, or there was none until the deadline.
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
        """Another number of credits, from the next frame on."""
        with self._changed:
            self._limit = credits
            self._changed.notify_all()

    @property
    def is_open(self) -> bool:
        """Whether frames are let in."""
        return self._refusal is None

    @property
    def credits(self) -> int:
        """The most frames that may be inside."""
        return self._limit

    def inside(self) -> list[Frame]:
        """Frames that were not answered yet, in the order in which they came."""
        with self._changed:
            return list(self._inside.values())

    def answer(self, number: int, outputs: dict[str, Any]) -> bool:
        """Hand out an answer; False for one that is there already, or was given up."""
        frame = self._leave(number)
        if frame is not None:
            self.answered += 1
            frame.answer.set_result(outputs)
        return frame is not None

    def fail(self, number: int, error: Exception) -> bool:
        """Give a frame up; False if it was answered already."""
        frame = self._leave(number)
        if frame is not None:
            frame.answer.set_exception(error)
        return frame is not None

    def fail_late(self) -> int:
        """Give up all frames whose deadlines have passed; how many."""
        now = time.monotonic()
        late = [frame for frame in self.inside() if frame.deadline_s <= now]
        for frame in late:
            taken = now - frame.admitted_s
            self.fail(frame.number, ExecutionError(
                f"frame {frame.number} was not answered within {taken:.1f} s; allow more time "
                f"(deadline_s), or look at `coexec cluster status`"))  # fmt: skip
        return len(late)

    def close(self, refusal: CoexecError | None = None) -> None:
        """Let nobody in any more, and give up those that are inside. May be called again."""
        with self._changed:
            self._refusal = self._refusal or refusal or ClosedError(
                "the cluster's session is closed; make a new one")  # fmt: skip
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
