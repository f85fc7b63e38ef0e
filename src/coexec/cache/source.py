"""Which code this is, told by its source files."""

import hashlib
from functools import cache
from pathlib import Path

__all__ = ["source_digest"]


@cache
def source_digest(folder: Path) -> str:
    """Eight digits that are equal for equal Python files in equal places of ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
