"""Main memory: how much there is, how much a model needs at least, and what is given back."""

import ctypes
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coexec.control_groups import memory_limit_bytes
from coexec.errors import CoexecError, ExecutionError, ModelError
from coexec.units import format_bytes

if TYPE_CHECKING:
    from coexec.graph.graph import Graph

_libc = ctypes.CDLL(None)


def main_memory_bytes() -> int | None:
    """Bytes of main memory that this process may use at most; None if the machine does not show
    it."""
    try:
        size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    limits = [memory_limit_bytes(), _data_limit_bytes()]
    return min([size_bytes, *(limit for limit in limits if limit is not None)])


@contextmanager
def bounded_memory(limit_bytes: int | None) -> Iterator[None]:
    """Let allocations of this process, and of those that it starts, fail beyond ``limit_bytes``
    from now on. Drivers and imports report a failed allocation by any error.

    Raises:
        ExecutionError: planning inside the block needs more.
    """
    if limit_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    try:
        yield
    except CoexecError:
        raise
    except Exception as error:
        if limit_bytes is None and not isinstance(error, MemoryError):
            raise
        raise too_little_memory(limit_bytes) from None


def too_little_memory(limit_bytes: int | None) -> ExecutionError:
    """The error of planning that needs more memory than it may use."""
    given = "there is" if limit_bytes is None else f"memory_limit={format_bytes(limit_bytes)}"
    return ExecutionError(f"planning needs more memory than {given}; give it more")


def _data_limit_bytes() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def resident_bytes(pid: int | str = "self") -> int:
    """Bytes of a process that are in main memory now; 0 if it has ended."""
    return _of_status("VmRSS", pid) or 0


def peak_bytes(pid: int | str = "self") -> int | None:
    """The largest number of bytes of a process that were in main memory at a time; None if it has
    ended."""
    # getrusage also counts the memory of the parent at the start of this process.
    return _of_status("VmHWM", pid)


def _of_status(field: str, pid: int | str) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)
    return None if found is None else 1024 * int(found[1])


def least_bytes(graph: "Graph") -> int:
    """Least number of bytes that are in use at the same time, for every plan of the graph.

    All weights, and the largest of: inputs and outputs of one task, all inputs, all outputs.
    """

    def size(names: tuple[str, ...]) -> int:
        tensors = (graph.tensors[name] for name in dict.fromkeys(names))
        return sum(tensor.size_bytes for tensor in tensors if not tensor.constant)

    groups = [(*task.inputs, *task.outputs) for task in graph.tasks]
    return graph.weight_bytes + max(map(size, (graph.inputs, graph.outputs, *groups)))


def require_memory(what: str, needed_bytes: int) -> None:
    """Raise ModelError unless the machine has that much memory, whether it is free now or not."""
    have = main_memory_bytes()
    if have is not None and needed_bytes > have:
        raise ModelError(
            f"{what} needs at least {format_bytes(needed_bytes)} of memory, and this "
            f"machine has {format_bytes(have)}; give it smaller shapes"
        )


def trim_memory() -> None:
    """Give memory that is free back to the system. The C library keeps much of what a session of
    ONNX Runtime or a copy of weights has used."""
    trim = getattr(_libc, "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
