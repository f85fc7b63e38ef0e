"""The threads that compute requests. Several served sessions may share them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from coexec.engines.detect import usable_cores
from coexec.errors import BusyError, UsageError

__all__ = ["Workers"]

_T = TypeVar("_T")


class Workers:
    """A thread for each credit: a request takes a credit when it begins, and returns it when its
    outputs are complete."""

    def __init__(self, credits: int | None = None) -> None:
        """
        Args:
            credits: most requests at the same time; by default one for each usable core.

        Raises:
            UsageError: there are no credits.
        """
        if credits is not None and credits < 1:
            raise UsageError(f"credits={credits} answer no request; give at least 1")
        self.credits = len(usable_cores()) if credits is None else credits
        self._left = BoundedSemaphore(self.credits)
        self._pool = ThreadPoolExecutor(self.credits, "coexec serve")

    def begin(self, work: Callable[[], _T]) -> Future[_T]:
        """Begin ``work`` in a thread.

        Raises:
            BusyError: no credit is left.
        """
        if not self._left.acquire(blocking=False):
            raise BusyError(f"no credit is left: {self.credits} requests are under way; try again")
        try:
            future = self._pool.submit(work)
        except BaseException:
            self._left.release()
            raise
        # The first callback returns the credit. So a client with an answer can send a new request.
        future.add_done_callback(lambda _: self._left.release())
        return future

    def close(self) -> None:
        """Return when all work is done, and end the threads."""
        self._pool.shutdown()
