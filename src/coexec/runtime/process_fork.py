"""Support for `os.fork` while sessions run.

A fork copies only the memory and the calling thread. A lock that another thread holds inside of an
engine stays locked in the child for ever. So before the process is copied, all threads finish their
current segment. Devices continue the work that was launched on them. Engines that launch work ahead
cannot be used in the child. In the child, `after_fork` is called on objects that lost their
threads.
"""

import ctypes
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

_LONGEST_WAIT_S = 10.0
"""Longest time for which a fork waits for running segments."""
_POLL_S = 0.0005


class Forkable(Protocol):
    """An object that loses its threads in a forked child."""

    def after_fork(self) -> None:
        """Called in the child, by its only thread."""
        ...


@runtime_checkable
class Pausable(Protocol):
    """An object whose own threads compute outside of `COMPUTING`."""

    def before_fork(self, end_s: float) -> None:
        """Let all threads end their current step, at most until ``end_s`` of `time.monotonic`."""
        ...

    def after_fork_in_parent(self) -> None:
        """Let the threads go on."""
        ...


class _Computing:
    """The threads that compute at the moment: a context manager around each job."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._shut_until_s = 0.0
        """No thread enters before this time. It is a time and not a flag, because a flag could stay
        set if a hook is interrupted."""

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
        """Let no thread enter, and wait until the other threads have left."""
        end_s = self._shut_until_s = time.monotonic() + _LONGEST_WAIT_S
        while self._inside - {threading.get_ident()} and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    def go_on(self) -> None:
        self._shut_until_s = 0.0

    def go_on_alone(self) -> None:
        """As `go_on`, in the child process, which has one thread."""
        self._inside &= {threading.get_ident()}
        self._shut_until_s = 0.0


COMPUTING = _Computing()
"""One for the process, because a fork copies all of it."""

_watched: "weakref.WeakSet[Any]" = weakref.WeakSet()


def watch(thing: Forkable) -> None:
    """Call ``thing.after_fork`` in forked children, as long as ``thing`` lives."""
    _watched.add(thing)


def keep_for_ever(thing: Any) -> None:
    """Never destroy ``thing``: its destructor would wait for threads that do not exist here.

    The additional reference also outlives the end of the interpreter.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _tell_watched() -> None:
    COMPUTING.go_on_alone()
    for thing in list(_watched):
        thing.after_fork()


def _pause() -> None:
    COMPUTING.stop()
    end_s = time.monotonic() + _LONGEST_WAIT_S
    for thing in list(_watched):
        if isinstance(thing, Pausable):
            thing.before_fork(end_s)


def _go_on() -> None:
    COMPUTING.go_on()
    for thing in list(_watched):
        if isinstance(thing, Pausable):
            thing.after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_pause,
        after_in_parent=_go_on,
        after_in_child=_tell_watched,
    )
