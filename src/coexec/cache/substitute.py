"""A folder that replaces a cache that cannot be written, for as long as this process lasts.

Kernels, measurements and lowered models are used several times in a process, by its threads and by
child processes. Entries that the cache refuses are therefore kept here, and removed when the
process ends.
"""

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path

from coexec.cache.scratch import MEMORY

__all__ = ["has_substitute", "substitute"]

_lock = threading.Lock()
_folders: dict[Path, Path | None] = {}
"""Replacement by cache folder; None: no disk of this machine can be written."""


def has_substitute(root: Path) -> Path | None:
    """The folder that replaces ``root``, if an entry had to be kept there."""
    return _folders.get(root)


def substitute(root: Path) -> Path | None:
    """The folder that replaces ``root``, made if there is none; None if none can be made."""
    with _lock:
        if root not in _folders:
            _folders[root] = _made()
        return _folders[root]


def _made() -> Path | None:
    for parent in (None, MEMORY):
        try:
            folder = Path(tempfile.mkdtemp(prefix="coexec-cache-", dir=parent))
        except OSError:
            continue
        atexit.register(_remove, folder, os.getpid())
        return folder
    return None


def _remove(folder: Path, pid: int) -> None:
    """Remove the folder; a forked child leaves that to its parent."""
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
