"""Exports: folders with a model, its plan and the entries of the cache that a start takes. `coexec
export` writes them; sessions and commands open them, in other processes and on other machines.

Every session calls `is_export`. The other modules of this folder are imported only for an export.
"""

import os
from typing import Any

MANIFEST = "manifest.json"


def is_export(source: Any) -> bool:
    """Whether ``source`` is a folder with a manifest. `opening.resolve_export` checks the
    manifest."""
    if not isinstance(source, str | os.PathLike):
        return False
    return os.path.isdir(source) and os.path.lexists(os.path.join(source, MANIFEST))
