"""A lock for one request at a time that no exception can leave locked."""

import threading
from contextlib import suppress

from coexec.errors import UnfinishedError


class RunLock:
    """A lock that survives an exception at any bytecode of its holder.

    A signal handler may raise after an ordinary lock was acquired and before the statement that
    records it. The lock is then never released. A reentrant lock stores its owner, so that one
    release too many does no harm. Use it like this::

        turn.refuse_nested()
        try:
            try:
                turn.take()
                ...
            finally:
                turn.give_back()
        finally:
            turn.give_back()  # an exception may have interrupted the first one
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds the turn. True in signal handlers during a run."""
        return self._holder == threading.get_ident()

    def refuse_nested(self) -> None:
        """Raise UnfinishedError if the calling thread holds the turn: a nested run would wait for
        ever."""
        if self.is_mine:
            raise UnfinishedError(
                "run was called by a signal handler while the same thread is inside of run; "
                "note the signal in the handler, and call run after the other one has returned"
            )

    def take(self, timeout_s: float = -1) -> bool:
        """Wait for the turn, by default without a time limit. Returns whether it was acquired."""
        acquired = self._lock.acquire(timeout=timeout_s)
        if acquired:
            self._holder = threading.get_ident()
        return acquired

    def wait(self, timeout_s: float) -> None:
        """Wait until no other thread holds the turn, or the time is over."""
        try:
            try:
                self.take(timeout_s)
            finally:
                self.give_back()
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Release the turn if the calling thread holds it; else do nothing."""
        if self.is_mine:
            self._holder = None
        with suppress(RuntimeError):  # not taken, or given back before
            self._lock.release()
