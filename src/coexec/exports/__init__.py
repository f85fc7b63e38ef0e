"""Exports: folders with a model, its plan and compiled parts. `coexec export` writes them; sessions
and verbs open them, in other processes and on other machines.

Every session asks whether it is given one: the rest of this room is imported only then.
"""

import os
from typing import Any

__all__ = ["MANIFEST", "is_export"]

MANIFEST = "manifest.json"


def is_export(source: Any) -> bool:
    """Whether a model is given as a folder with a manifest; `opening.resolve_export` checks it."""
    if not isinstance(source, str | os.PathLike):
        return False
    return os.path.isdir(source) and os.path.lexists(os.path.join(source, MANIFEST))
