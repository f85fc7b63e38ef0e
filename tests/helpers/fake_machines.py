"""Folders like the root of a Linux system, with the files of proc and sys that a test writes."""

from collections.abc import Mapping
from pathlib import Path


def written(root: Path, files: Mapping[str, str]) -> Path:
    """``root``, with these files by path below it."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root
