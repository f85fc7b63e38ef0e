"""Files that appear completely or not at all, with the mode that the umask leaves."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["write_new", "write_whole"]

_MODE = 0o666
"""Mode before the umask, as for every file that a program makes."""


def write_new(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Make a file with these contents.

    Raises:
        OSError: the file exists, or cannot be written; a part of it may be left.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        for part in parts:
            _write_all(handle, memoryview(part).cast("B"))
    finally:
        os.close(handle)


def write_whole(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Replace ``path`` by a file with these contents, in one step.

    Raises:
        OSError: it cannot be written. Nothing has changed then.
    """
    draft = path.with_name(f".coexec-{os.urandom(8).hex()}")
    try:
        write_new(draft, parts)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _write_all(handle: int, data: memoryview) -> None:
    while data:
        data = data[os.write(handle, data) :]
