"""OpenCL's errors in words that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl

from coexec.errors import CoexecError, DeviceError, first_line

__all__ = ["cause", "translated"]


@contextmanager
def translated(device: str, doing: str, kind: type[CoexecError] = DeviceError) -> Iterator[None]:
    """Turn errors of OpenCL into one of ours.

    Args:
        device: its name.
        doing: completes "the device failed while ...".
        kind: the error to raise.
    """
    try:
        yield
    except (cl.MemoryError, MemoryError) as error:
        raise kind(
            f"{device} ran out of memory while {doing} ({first_line(error)}); use smaller shapes, "
            f"--gpu precision=fp16, or let another device do a part"
        ) from error
    except cl.Error as error:
        raise kind(
            f"{device} failed while {doing} ({cause(error)}); if it fails again, leave the "
            f"device out or update its driver: coexec devices shows which it is"
        ) from error


def cause(error: Exception) -> str:
    """The first complaint of the compiler, if it was that; else what OpenCL says."""
    complaints = (line for line in str(error).splitlines() if "error:" in line)
    return next(complaints, first_line(error)).strip()
