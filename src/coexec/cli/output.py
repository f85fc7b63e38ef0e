"""Output of verbs: files, and JSON documents for programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coexec.cache import write_whole
from coexec.errors import StoreError, UsageError

__all__ = ["SCHEMA", "check_files", "print_json", "write_file"]

SCHEMA = 1
"""Version of the documents: it changes when a field is removed or changes its meaning."""


def check_files(*paths: Path | None) -> None:
    """Refuse output paths that cannot be files, before long work.

    Raises:
        UsageError: a path is a folder.
    """
    for path in paths:
        if path is not None and path.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: it is a folder; name a file")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a whole file, or nothing.

    Raises:
        UsageError: ``path`` is a folder.
        StoreError: the file cannot be written.
    """
    check_files(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [content.encode() if isinstance(content, str) else content])
    except OSError as error:
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}; choose another place"
        ) from None


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output, with the version of its schema. Infinity and NaN
    become null, because JSON does not have them."""
    print(json.dumps(_plain({"schema": SCHEMA, **data}), indent=1, default=str))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
