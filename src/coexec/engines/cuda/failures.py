"""Converts errors of CUDA into errors that name a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from coexec.engines.cuda.driver import CudaError
from coexec.errors import CoexecError, DeviceError, first_line


class CompileError(Exception):
    """A kernel's text does not compile, or CUDA cannot load or launch it."""

    def __init__(self, text: str, source: str = "") -> None:
        """``source``: the kernel's text, if it is known."""
        super().__init__(text)
        self.source = source


@contextmanager
def translated(device: str, doing: str, kind: type[CoexecError] = DeviceError) -> Iterator[None]:
    """Convert errors of CUDA in the ``with`` block into an error of coexec.

    Args:
        device: name of the device.
        doing: completes "the device failed while ...".
        kind: type of the error that is raised.
    """
    try:
        yield
    except (CompileError, CudaError) as error:
        raise failure(device, doing, error, kind) from error


def failure(
    device: str,
    doing: str,
    error: CompileError | CudaError,
    kind: type[CoexecError],
) -> CoexecError:
    """The error of coexec for one of CUDA. The arguments are those of `translated`."""
    failed = kind(f"{device} {_words(doing, error)}")
    failed.device = device
    return failed


def _words(doing: str, error: CompileError | CudaError) -> str:
    if isinstance(error, CompileError):
        why = f"({first_line(error)}); run that part elsewhere with another plan"
        return f"failed while {doing} {why}"
    if error.is_out_of_memory:
        return (
            f"ran out of memory while {doing} ({error}); use smaller shapes, end other programs "
            f"on this GPU (nvidia-smi lists them), or let another device do a part"
        )
    return (
        f"failed while {doing} ({error}); if it fails again in a new process, leave the device "
        f"out or update its driver: coexec devices shows which it is"
    )
