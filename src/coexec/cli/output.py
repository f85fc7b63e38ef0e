"""Output of verbs: files, and JSON documents for programs."""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec.cache import write_whole
from coexec.codec import without_nan
from coexec.errors import StoreError, UsageError

if TYPE_CHECKING:
    from coexec.selection.prepared import Prepared

__all__ = [
    "SCHEMA",
    "check_files",
    "check_folder",
    "check_plan_file",
    "print_json",
    "write_file",
    "write_node_data",
    "write_plan",
]

SCHEMA = 1
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
        UsageError: the path is a folder, or the file of ``model``.
    """
    check_files(path)
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


def write_plan(path: Path, model: str, prepared: "Prepared") -> None:
    """Write a plan: ``model`` with the plan in it if ``path`` ends with .onnx, else JSON.

    Raises:
        UsageError: ``path`` is a folder, or the model itself.
        StoreError: the file cannot be written.
    """
    from coexec.exports.planned_model import planned_model
    from coexec.research_loader import resolved_model
    from coexec.selection.plan_files import is_onnx, text_of

    if not is_onnx(path):
        write_file(path, text_of(prepared.plan, prepared.graph, prepared.origin.shapes))
        return
    check_plan_file(path, model)
    planned = planned_model(resolved_model(model), prepared, path)
    if planned.weights:
        write_file(path.with_name(planned.weights_name), planned.weight_chunks())
    write_file(path, planned.content)


def write_node_data(
    folder: Path, model: str, prepared: "Prepared", measured_s: Mapping[str, float]
) -> None:
    """Write node data of Model Explorer, a file for each kind of value.

    Args:
        measured_s: by task; empty if nothing was measured.

    Raises:
        StoreError: a file cannot be written.
    """
    from coexec.exports.node_data import node_data
    from coexec.research_loader import resolved_model

    for name, text in node_data(resolved_model(model), prepared, measured_s).items():
        write_file(folder / name, text)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output, with the version of its schema. Infinity and NaN
    become null, because JSON does not have them."""
    print(json.dumps(without_nan({"schema": SCHEMA, **data}), indent=1, default=str))
