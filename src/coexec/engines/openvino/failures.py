"""OpenVINO's errors as errors of coexec that name a remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from coexec.errors import CoexecError, DeviceError, ExecutionError, first_line

_PLACE = re.compile(r"^(Exception from \S+:\d+:|Check '.*' failed at \S+:)\s*")
"""Position in OpenVINO's source. It precedes the reason, and is repeated by each calling level."""
_ADVICE = "To facilitate the conversion"
"""Begin of a reference to OpenVINO's guide for extensions."""


@contextmanager
def translated(device: str, doing: str, remedy: str) -> Iterator[None]:
    """Turn errors of OpenVINO into `DeviceError`.

    Args:
        device: its name.
        doing: completes "the device failed while ...".
        remedy: advice for the user.
    """
    try:
        yield
    except CoexecError:
        raise
    except MemoryError as error:
        raise DeviceError(
            f"{device} ran out of memory while {doing}; use smaller shapes, or let "
            f"another device do a part"
        ) from error
    except (RuntimeError, TypeError, ValueError) as error:
        raise DeviceError(f"{device} failed while {doing} ({cause(error)}); {remedy}") from error


def cause(error: BaseException) -> str:
    """The innermost reason of an error, on one line.

    OpenVINO's message has a line for each level that the error passed; the reason comes last.
    """
    lines = (_PLACE.sub("", line.strip()) for line in str(error).splitlines())
    reasons = [line for line in lines if line and not line.startswith(_ADVICE)]
    return reasons[-1] if reasons else first_line(error)


def execution_error(device: str, error: BaseException) -> ExecutionError | None:
    """The error to raise for an error of a running program; None if OpenVINO did not raise it.

    A signal handler may have raised it, in the middle of a call.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not isinstance(error, RuntimeError | MemoryError):
        return None
    # An exception of C++ code has the calling Python frame as its innermost frame.
    name = str(traceback.tb_frame.f_globals.get("__name__", ""))
    if not name.startswith(("openvino", __package__ or "")):
        return None
    return ExecutionError(f"{device}: {cause(error)}")
