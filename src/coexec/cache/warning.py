"""One warning for each cache folder and process, however many problems there are."""

import warnings
from pathlib import Path

from coexec.errors import CacheWarning

__all__ = ["never_warn", "warn_once"]

_warned: set[str] = set()


def never_warn(root: Path) -> None:
    """Do not warn about a cache in a temporary folder: its user can do nothing about it."""
    _warned.add(str(root))


def warn_once(root: Path, problem: str) -> None:
    """Warn about a problem of the cache in ``root``, unless this process has warned about it
    before."""
    if str(root) in _warned:
        return
    _warned.add(str(root))
    warnings.warn(
        f"the cache folder {str(root)!r}: {problem}; coexec carries on, and what it "
        f"cannot keep there is made again in the next process. Delete the folder, make room or "
        f"make it writable, or choose another with --cache DIR (InferenceSession: cache=DIR)",
        CacheWarning,
        stacklevel=3,
    )
