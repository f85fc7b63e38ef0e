"""Which coexec this is: its version and a digest of its source."""

from pathlib import Path

from coexec.__about__ import __version__
from coexec.cache.source import source_digest

__all__ = ["build"]


def build() -> str:
    """The same text on two machines if they run the same code: "0.1.0-1f0c9a3b"."""
    return f"{__version__}-{source_digest(Path(__file__).parent.parent)}"
