"""Forked children of a process that has used OpenCL.

The threads of OpenCL's runtimes exist in the parent process only. So in a child a call into a
runtime may block for ever, also a call that frees an object. The child gets an error in place of
the call.
"""

import ctypes
import os
import weakref
from typing import Any

from coexec.errors import ForkedError

_loaded_by: int | None = None
"""Id of the process that has loaded OpenCL; a forked child inherits the number."""
_kept: "weakref.WeakSet[Any]" = weakref.WeakSet()


def note_loaded() -> None:
    """Store the id of this process, which loads OpenCL."""
    global _loaded_by
    _loaded_by = os.getpid()


def in_forked_child() -> bool:
    """Whether this process was forked from the one that has loaded OpenCL."""
    return _loaded_by is not None and _loaded_by != os.getpid()


def refuse_forked() -> None:
    """
    Raises:
        ForkedError: OpenCL cannot be used in this process.
    """
    if in_forked_child():
        raise ForkedError(
            f"OpenCL was loaded in process {_loaded_by} and does not work in its forked child "
            f"{os.getpid()}; start the child with multiprocessing's method 'spawn', or use OpenCL "
            f"in children only and not in the process that forks them"
        )


def keep_in_children(thing: Any) -> None:
    """Never destroy ``thing`` in a forked child, as its destructor would call the runtime."""
    _kept.add(thing)


def _keep() -> None:
    for thing in list(_kept):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep)
