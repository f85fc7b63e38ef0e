"""Output of verbs: files, and JSON documents for programs."""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from coexec.cache import write_whole
from coexec.codec import encode, without_nan
from coexec.errors import StoreError, UsageError

SCHEMA = 2
"""Version of the documents: it changes when a field is removed or changes its meaning."""


def check_files(*paths: Path | None) -> None:
    """Refuse output paths that cannot be files, before long work.

    Raises:
        UsageError: a path is a folder.
        StoreError: no file can be written there.
    """
    for path in paths:
        if path is not None and path.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: it is a folder; name a file")
        if path is not None:
            check_folder(path.parent, path)


def check_folder(folder: Path, path: Path | None = None) -> None:
    """Refuse a folder that cannot be made or written, before long work.

    Args:
        path: the file to be written in it, for the message; None: the folder itself is the output.

    Raises:
        StoreError: the folder, or the nearest one above it that exists, does not take files.
    """
    existing = folder.absolute()
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        reason = f"{str(existing)!r} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"no permission to write in {str(existing)!r}"
    else:
        try:
            with tempfile.TemporaryFile(dir=existing):
                return
        except OSError as error:  # a read-only disk, or a folder of the kernel such as /proc
            reason = f"{str(existing)!r} takes no files ({error.strerror})"
    raise StoreError(f"cannot write {str(path or folder)!r}: {reason}; choose another place")


def check_plan_file(path: Path | None, model: str) -> None:
    """Refuse output paths of a plan that cannot be written, before long work.

    Raises:
        UsageError: the path is a folder, the file of ``model``, or the name of a model.
    """
    check_files(path)
    if path is not None and path.suffix.lower() == ".onnx":
        raise UsageError(
            f"{str(path)!r} is the name of a model, and a plan is JSON; name it "
            f"{path.with_suffix('.json').name}"
        )
    if path is not None and path.exists() and os.path.exists(model) and path.samefile(model):
        raise UsageError(f"{str(path)!r} is the model itself; name another file for the plan")


def write_file(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a whole file, or nothing.

    Args:
        content: all of it, or its parts in order.

    Raises:
        UsageError: ``path`` is a folder.
        StoreError: the file cannot be written.
    """
    check_files(path)
    content = content.encode() if isinstance(content, str) else content
    parts = [content] if isinstance(content, bytes) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, parts)
    except OSError as error:
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}; choose another place"
        ) from None


def members(result: Any) -> Mapping[str, Any]:
    """The members of a JSON document: the fields of a dataclass, or those of a mapping."""
    found: Mapping[str, Any] = encode(result) if is_dataclass(result) else result
    return found


def print_json(result: Any) -> None:
    """Print one JSON document on standard output, with the version of its schema. Infinity and NaN
    become null, because JSON does not have them.

    Args:
        result: a dataclass, or a mapping with its members.
    """
    document = without_nan({"schema": SCHEMA, **members(result)})
    print(json.dumps(document, indent=1, default=str))
