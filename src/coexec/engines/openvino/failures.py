"""OpenVINO's errors in words that say what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from coexec.errors import CoexecError, DeviceError, ExecutionError, first_line

__all__ = ["cause", "execution_error", "translated"]

_PLACE = re.compile(r"^(Exception from \S+:\d+:|Check '.*' failed at \S+:)\s*")
"""Where in OpenVINO's source it happened: before the reason, on each level that passed it on."""
_ADVICE = "To facilitate the conversion"
"""Begins a pointer to OpenVINO's guide for those who extend it."""


@contextmanager
def translated(device: str, doing: str, remedy: str) -> Iterator[None]:
    """Turn errors of OpenVINO into `DeviceError`.

    Args:
        device: its name.
        doing: completes "the device failed while ...".
        remedy: what the user can do.
    """
    try:
        yield
    except CoexecError:
        raise
    except MemoryError as error:
        raise DeviceError(f"{device} ran out of memory while {doing}; use smaller shapes, or let "
                          f"another device do a part") from error  # fmt: skip
    except (RuntimeError, TypeError, ValueError) as error:
        raise DeviceError(f"{device} failed while {doing} ({cause(error)}); {remedy}") from error


def cause(error: BaseException) -> str:
    """The innermost reason, on one line.

    OpenVINO lists the levels that an error passed, one a line, and the reason behind them.
    """
    lines = (_PLACE.sub("", line.strip()) for line in str(error).splitlines())
    reasons = [line for line in lines if line and not line.startswith(_ADVICE)]
    return reasons[-1] if reasons else first_line(error)


def execution_error(device: str, error: BaseException) -> ExecutionError | None:
    """What to raise for an error of a running program; None if it is not OpenVINO's.

    A signal handler may have raised it, in the middle of a call.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not isinstance(error, RuntimeError | MemoryError):
        return None
    # What C++ code raises arises in the frame that has called it.
    name = str(traceback.tb_frame.f_globals.get("__name__", ""))
    if not name.startswith(("openvino", __package__ or "")):
        return None
    return ExecutionError(f"{device}: {cause(error)}")
