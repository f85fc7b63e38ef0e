"""Which coexec this is: its version and a digest of its source."""

import hashlib
from functools import cache
from pathlib import Path

from coexec.__about__ import __version__

__all__ = ["build"]


@cache
def build() -> str:
    """The same text on two machines if they run the same code: "0.1.0-1f0c9a3b"."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return f"{__version__}-{digest.hexdigest()[:8]}"
