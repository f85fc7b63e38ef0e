"""`os.fork` beside sessions that run.

A fork copies memory but only the thread that calls it. A lock that another thread holds at that
moment inside of an engine stays locked in the child for ever, so threads come to a rest between two
segments before the process is copied. What has to be made again in the child is told to.
"""

import ctypes
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Protocol

__all__ = ["COMPUTING", "AfterFork", "keep_for_ever", "watch"]

_LONGEST_WAIT_S = 10.0
"""For segments under way. Beyond, a fork is not held back any longer."""
_POLL_S = 0.0005


class AfterFork(Protocol):
    """Something that a fork leaves without its threads."""

    def after_fork(self) -> None:
        """Called in the child, by its only thread."""
        ...


class _Computing:
    """The threads that are inside of a device at the moment. A context manager for these."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._shut_until_s = 0.0
        """Nobody is let in before; a time, so that a hook cut short shuts nobody out for ever."""

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._inside.add(me)
        while self._shut_until_s and time.monotonic() < self._shut_until_s:
            self._inside.discard(me)
            time.sleep(_POLL_S)
            self._inside.add(me)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside.discard(threading.get_ident())

    def stop(self) -> None:
        """Let nobody in, and wait until the other threads are out."""
        end_s = self._shut_until_s = time.monotonic() + _LONGEST_WAIT_S
        while self._inside - {threading.get_ident()} and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    def go_on(self) -> None:
        self._shut_until_s = 0.0

    def go_on_alone(self) -> None:
        """As `go_on`, in the child, which has one thread only."""
        self._inside &= {threading.get_ident()}
        self._shut_until_s = 0.0


COMPUTING = _Computing()
"""Of the whole process, as a fork is."""

_watched: "weakref.WeakSet[Any]" = weakref.WeakSet()


def watch(thing: AfterFork) -> None:
    """Tell ``thing`` of forks, as long as it lives."""
    _watched.add(thing)


def keep_for_ever(thing: Any) -> None:
    """Never destroy ``thing``: its destructor would wait for threads that a fork has left behind.

    One reference more than there are holders: not even the end of the interpreter gives it back.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _tell_watched() -> None:
    COMPUTING.go_on_alone()
    for thing in list(_watched):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=COMPUTING.stop,
        after_in_parent=COMPUTING.go_on,
        after_in_child=_tell_watched,
    )
