"""Requests that wait for a credit: a queue for each model, and turns of the models."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from coexec.arrays import Array
from coexec.errors import BusyError, DeadlineError
from coexec.serve.served import Served

_Outputs = Mapping[str, Array]


@dataclass(eq=False)
class _Waiting:
    """A request in a queue."""

    served: Served
    feeds: Mapping[str, Array]
    running: asyncio.Future[Future[_Outputs]]
    """Gets what `Served.submit` returns or raises."""


class Queues:
    """Requests that wait until `Served.submit` has a credit for them.

    The requests of a model begin in the order of their arrival. Models take turns: while a request
    of a model waits, each other model begins one request at most. Used by one thread, which runs
    the event loop.
    """

    def __init__(self, length: int) -> None:
        """
        Args:
            length: most requests of a model that wait.
        """
        self._length = length
        self._queues: dict[str, deque[_Waiting]] = {}
        """Waiting requests by model. The first model has the next turn."""
        self._running = 0

    def waiting(self, name: str) -> int:
        """Number of requests that wait for the model ``name``."""
        return len(self._queues.get(name, ()))

    async def begin(
        self, served: Served, feeds: Mapping[str, Array], wait_s: float
    ) -> Future[_Outputs]:
        """The future of a request that has begun. A cancelled call leaves the queue.

        Args:
            wait_s: seconds that the request may wait.

        Raises:
            BusyError: the queue is full.
            DeadlineError: there was no credit in time. The request is not computed.
            Exception: what `Served.submit` raises.
        """
        request = _Waiting(served, feeds, asyncio.get_running_loop().create_future())
        queue = self._queues.setdefault(served.name, deque())
        queue.append(request)
        self._begin_waiting()
        try:
            if not request.running.done() and len(queue) > self._length:
                raise BusyError(
                    f"no credit is left for {served.name!r}, and its queue is full: "
                    f"{self._length} requests wait; try again"
                )
            async with asyncio.timeout(wait_s):
                return await request.running
        except TimeoutError:
            if request.running.done() and not request.running.cancelled():
                return request.running.result()  # it has begun at this very moment
            raise DeadlineError(
                f"no credit for {served.name!r} became free in {wait_s:g} s; the request "
                f"is not computed; try again, or give it more time"
            ) from None
        finally:
            with contextlib.suppress(ValueError):  # it has begun
                queue.remove(request)

    def _begin_waiting(self) -> None:
        """Begin waiting requests, in turns, until there is no credit for any."""
        begun = True
        while begun:
            begun = False
            for name in list(self._queues):
                if self._begin_first(name):
                    begun = True
                    self._queues[name] = self._queues.pop(name)  # its next turn is the last

    def _begin_first(self, name: str) -> bool:
        """Begin the first request of a queue. Returns whether there was one, and a credit."""
        queue = self._queues[name]
        if not queue:
            return False
        first = queue[0]
        if first.running.cancelled():  # its caller is about to take it out
            queue.popleft()
            return True
        try:
            future = first.served.submit(first.feeds)
        except BusyError as error:
            if self._running:
                return False  # the end of a request begins the next one
            first.running.set_exception(error)
        except Exception as error:
            first.running.set_exception(error)
        else:
            self._running += 1
            loop = first.running.get_loop()
            future.add_done_callback(lambda _: _call_soon(loop, self._ended))
            first.running.set_result(future)
        queue.popleft()
        return True

    def _ended(self) -> None:
        self._running -= 1
        self._begin_waiting()


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
        loop.call_soon_threadsafe(function)
