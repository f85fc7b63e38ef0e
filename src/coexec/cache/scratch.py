"""Folders for temporary files, for example of ONNX Runtime's optimizer."""

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from coexec.cache.drafts import Drafts

__all__ = ["MEMORY", "in_scratch", "private_folder"]

_T = TypeVar("_T")
MEMORY = Path("/dev/shm")
"""A folder whose files are in memory."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """An empty folder outside of any cache, removed at the end.

    Raises:
        OSError: the system has no place for temporary files.
    """
    try:
        folder = tempfile.mkdtemp(prefix="coexec-")
    except OSError:
        folder = tempfile.mkdtemp(prefix="coexec-", dir=MEMORY)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="coexec-", dir=MEMORY, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def in_scratch(drafts: Drafts, size_bytes: int, work: Callable[[Path], _T]) -> _T:
    """The result of ``work`` for a private folder, in the first location that has room for it.

    The locations are the cache, the system's folder for temporary files, and memory.

    Args:
        size_bytes: most bytes that ``work`` writes.

    Raises:
        OSError: none of the locations can be written.
    """
    refused: OSError = OSError(errno.ENOSPC, "no space left on device")
    places: tuple[Callable[[], AbstractContextManager[Path]], ...] = (
        drafts.scratch,
        private_folder,
        _in_memory,
    )
    for place in places:
        try:
            with place() as folder:
                if shutil.disk_usage(folder).free < size_bytes:
                    continue
                try:
                    return work(folder)
                except Exception as error:
                    # Engines report a full disk with errors of their own, or not at all: they leave
                    # files that end too early. The free space decides.
                    full = shutil.disk_usage(folder).free < size_bytes // 4
                    if isinstance(error, OSError) or not full:
                        raise
        except OSError as error:
            refused = error
    raise refused
