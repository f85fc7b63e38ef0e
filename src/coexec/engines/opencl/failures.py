"""Converts OpenCL's errors into errors that name a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl

from coexec.errors import CoexecError, DeviceError, first_line


@contextmanager
def translated(device: str, doing: str, kind: type[CoexecError] = DeviceError) -> Iterator[None]:
    """Convert errors of OpenCL in the ``with`` block into an error of coexec.

    Args:
        device: name of the device.
        doing: completes "the device failed while ...".
        kind: type of the error that is raised.
    """
    try:
        yield
    except (cl.Error, MemoryError) as error:
        failed = kind(f"{device} {_words(doing, error)}")
        failed.device = device
        raise failed from error


def _words(doing: str, error: Exception) -> str:
    if isinstance(error, cl.MemoryError | MemoryError):
        return (
            f"ran out of memory while {doing} ({first_line(error)}); use smaller shapes, "
            f"--engine opencl.precision=fp16, or let another device do a part"
        )
    return (
        f"failed while {doing} ({_cause(error)}); if it fails again, leave the device out or "
        f"update its driver: coexec devices shows which it is"
    )


def _cause(error: Exception) -> str:
    """First error message of the compiler, if there is one; else the first line of the error."""
    complaints = (line for line in str(error).splitlines() if "error:" in line)
    return next(complaints, first_line(error)).strip()
