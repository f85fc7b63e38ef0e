"""A folder that replaces a cache that cannot be written, for as long as this process lasts.

Kernels, measurements and lowered models are used several times in a process, by its threads and by
child processes. Entries that the cache refuses are therefore kept here, and removed when the
process ends. If it is killed, the next process that needs such a folder removes them.
"""

import os
import stat
import tempfile
import threading
from pathlib import Path

from coexec.cache.drafts import Drafts
from coexec.cache.scratch import MEMORY

__all__ = ["has_substitute", "substitute"]

_lock = threading.Lock()
_folders: dict[Path, Path | None] = {}
"""Replacement by cache folder; None: no disk of this machine can be written."""
_owners: list[Drafts] = []
"""They remove the folders at the end of the process."""


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
    for place in (tempfile.gettempdir, lambda: MEMORY):
        try:
            drafts = Drafts(_private(Path(place())))
            drafts.sweep()
            folder = drafts.prepare()
        except OSError:
            continue
        _owners.append(drafts)
        return folder
    return None


def _private(place: Path) -> Path:
    """The folder of this user for such folders.

    Raises:
        OSError: it cannot be made, or another user could have written there.
    """
    folder = place / f"coexec-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not private")
    return folder
