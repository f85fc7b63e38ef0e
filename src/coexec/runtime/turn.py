"""One request at a time, whatever ends it."""

import threading
from contextlib import suppress

from coexec.errors import ExecutionError

__all__ = ["Turn"]


class Turn:
    """A lock that survives an exception at any bytecode of its holder.

    A signal handler may raise between the call that takes an ordinary lock and the statement that
    notes it, and the lock is then held for ever. A reentrant lock knows its owner itself, so that
    giving back more often than taking does nothing. Holders write::

        turn.refuse_nested()
        try:
            try:
                turn.take()
                ...
            finally:
                turn.give_back()
        finally:
            turn.give_back()  # an exception may have cut the first one short
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds the turn: it is in a signal handler then."""
        return self._holder == threading.get_ident()

    def refuse_nested(self) -> None:
        """Raise ExecutionError where waiting for the turn would be waiting for oneself."""
        if self.is_mine:
            raise ExecutionError(
                "run was called by a signal handler while the same thread is inside of run; "
                "note the signal in the handler, and call run after the other one has returned"
            )

    def take(self, timeout_s: float = -1) -> bool:
        """Wait for the turn, for ever by default; whether it was given."""
        taken = self._lock.acquire(timeout=timeout_s)
        if taken:
            self._holder = threading.get_ident()
        return taken

    def give_back(self) -> None:
        """Let the next one in, if the calling thread holds the turn."""
        if self.is_mine:
            self._holder = None
        with suppress(RuntimeError):  # not taken, or given back before
            self._lock.release()
