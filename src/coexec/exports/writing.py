"""Write an export: into a draft beside the target folder, which replaces the folder at the end."""

import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from coexec.cache import write_new
from coexec.errors import CoexecError, StoreError, UsageError
from coexec.exports import MANIFEST
from coexec.exports.machine import ExportMachine
from coexec.exports.manifest import FileFacts, Manifest

__all__ = ["ExportDraft", "check_target", "draft_beside"]

_DRAFT = ".coexec-export-"
_OLD = "-old"
_AT_FDCWD = -100
_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def check_target(folder: Path | str) -> Path:
    """The absolute path of the folder for an export.

    Raises:
        UsageError: other files lie there.
    """
    target = Path(os.path.realpath(folder))
    try:
        if not target.exists():
            return target
        if not target.is_dir():
            raise UsageError(f"cannot export to {str(folder)!r}: it is a file; name a folder")
        present = sorted(_files_below(target))
        if present:
            _refuse_others(folder, target, present)
        return target
    except OSError as error:
        raise _unwritable(target, error) from None


def _refuse_others(folder: Path | str, target: Path, present: list[str]) -> None:
    """Refuse a folder with files that are no part of an export. An export is replaced as a whole,
    so these files would be lost."""
    try:
        files = {MANIFEST, *Manifest.read(target).files}
    except StoreError:
        raise UsageError(
            f"cannot export to {str(folder)!r}: it has files and is no sound export; "
            f"name a folder that is empty or not there"
        ) from None
    if foreign := [name for name in present if name not in files]:
        raise UsageError(
            f"cannot export to {str(folder)!r}: {foreign[0]!r} in it is none of the "
            f"export's; move it away, or name another folder"
        )


def _files_below(folder: Path) -> Iterator[str]:
    """Paths below ``folder`` of everything that is no folder, and of links to folders."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(parent, name), folder)


class ExportDraft:
    """An export that is being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, FileFacts] = {}

    def write(self, name: str, parts: Iterable[bytes]) -> Path:
        """Add a file, by its path below the folder.

        Raises:
            OSError: it cannot be written.
        """
        digest, size_bytes = xxhash.xxh3_128(), 0

        def seen() -> Iterator[bytes]:
            nonlocal size_bytes
            for part in parts:
                digest.update(part)
                size_bytes += len(part)
                yield part

        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, seen())
        self.files[name] = FileFacts(size_bytes, digest.hexdigest())
        return path

    def finish(
        self,
        model: str,
        inputs: Mapping[str, Mapping[str, Any]],
        engine_options: Mapping[str, Mapping[str, str]],
        machine: ExportMachine,
    ) -> Manifest:
        """Write the manifest, after all other files.

        Raises:
            OSError: it cannot be written.
        """
        manifest = Manifest(model, inputs, engine_options, machine, dict(self.files))
        write_new(self.folder / MANIFEST, [manifest.to_json().encode()])
        return manifest


@contextmanager
def draft_beside(target: Path) -> Iterator[ExportDraft]:
    """Context with a draft that replaces ``target`` at the end. If this fails, no draft is left.

    Raises:
        UsageError: the draft cannot be written; or, as in `check_target`, other files lie in
            ``target`` now.
    """
    draft_folder, lock = target.with_name(f"{_DRAFT}{os.urandom(8).hex()}"), -1
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        draft_folder.mkdir()
        lock = _locked(draft_folder)
        yield ExportDraft(draft_folder)
        check_target(target)
        if not _exchanged(draft_folder, target):
            _replace(draft_folder, target)
    except CoexecError:  # some of these are subclasses of OSError, too
        raise
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        if lock >= 0:
            os.close(lock)
        shutil.rmtree(draft_folder, ignore_errors=True)


def _unwritable(target: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot export to {str(target)!r}: {error.strerror or error}; make room or "
        f"choose another place"
    )


def _replace(own: Path, target: Path) -> None:
    """Replace ``target``, if it exists, by ``own`` in two steps."""
    if not target.exists():
        os.replace(own, target)
        return
    old = own.with_name(own.name + _OLD)
    os.replace(target, old)
    try:
        os.replace(own, target)
    except OSError:
        os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange two folders in one step. Returns False if this is impossible, for example because
    one of them does not exist."""
    with suppress(AttributeError):
        names = os.fsencode(first), os.fsencode(second)
        return int(_libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE)) == 0
    return False


def _locked(folder: Path) -> int:
    """A handle that locks the folder as in use. The system releases the lock when the process
    ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):  # a disk without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _sweep(parent: Path) -> None:
    """Remove drafts of processes that were killed."""
    for folder in parent.glob(f"{_DRAFT}*"):
        if folder.name.endswith(_OLD):  # an earlier export, which a user may want back
            continue
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
