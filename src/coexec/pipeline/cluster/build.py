"""Version of the running coexec: its release and a digest of its source."""

from pathlib import Path

from coexec.__about__ import __version__
from coexec.cache.source import source_digest


def build() -> str:
    """Release and source digest, such as "0.1.0-1f0c9a3b"; equal on machines that run the same
    code."""
    return f"{__version__}-{source_digest(Path(__file__).parents[2])}"
