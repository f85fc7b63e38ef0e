"""Weights in files beside the model: which files a model may name.

A location is relative, has no "..", and names an entry of the model's folder: the one in the path
that the user named, or the one that really contains the file. Symbolic links on the way may lead
only within that folder, or within the cache of Hugging Face that contains the model: there,
"snapshots/REVISION" has links to the files in "blobs". Without these rules a downloaded model could
read any file of the machine. A hard link is a file like any other.
"""

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from coexec.errors import ModelError

_ADDRESS = "*/_ORT_MEM_ADDR_/*"
"""ONNX Runtime reads a weight of this location from its own memory, at the address in its
offset."""


class ModelFolders:
    """The folders of one model."""

    def __init__(self, path: Path) -> None:
        named = path.parent.absolute()
        self._folders = tuple(dict.fromkeys((named, path.resolve().parent)))
        hub = _hub_of(named)
        roots = (*self._folders, *(() if hub is None else (hub,)))
        self._roots = tuple(folder.resolve() for folder in roots)

    def require(self, weight: str, entries: Mapping[str, str], size_bytes: int) -> None:
        """Raise ModelError unless the entries of an external weight name a file that holds it.

        Args:
            entries: "location", and where they are given "offset" and "length" in bytes.
            size_bytes: of the weight.
        """
        file, what = self.file(weight, entries.get("location", "")), f"weight {weight!r} needs"
        try:
            offset, length = (int(entries.get(k, d)) for k, d in (("offset", 0), ("length", -1)))
        except ValueError:
            offset = length = -1
        if offset < 0 or (length != size_bytes and "length" in entries):
            raise ModelError(
                f"{what} {size_bytes} bytes, and its entry says offset "
                f"{entries.get('offset', 0)!s:.40} and length {entries.get('length')!s:.40} in "
                f"{str(file)!r}; the model is damaged: export or download it again"
            )
        have = file.stat().st_size
        if have < offset + size_bytes:
            raise ModelError(
                f"{what} {offset + size_bytes} bytes of {str(file)!r}, which is only {have} bytes "
                f"long; copy the model together with all of its data files"
            )

    def file(self, weight: str, location: str) -> Path:
        """The regular file that ``location`` names, with its links resolved."""
        if not is_below(location) or location == _ADDRESS:
            raise self._outside(weight, location, location)
        folder = next((f for f in self._folders if os.path.lexists(f / location)), None)
        if folder is None:
            raise self._unusable(weight, self._folders[0] / location, "missing")
        entry = folder / location
        try:
            file = entry.resolve(strict=True)
            mode = file.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            reason = getattr(error, "strerror", None) or "a loop of links"
            raise self._unusable(weight, entry, f"not there ({reason})") from None
        if not any(file.is_relative_to(root) for root in self._roots):
            raise self._outside(weight, location, str(file))
        if not stat.S_ISREG(mode):
            raise self._unusable(weight, entry, "not a regular file")
        if not os.access(file, os.R_OK):
            raise self._unusable(weight, entry, "not readable for this user")
        return file

    def _outside(self, weight: str, location: str, leads_to: str) -> ModelError:
        link = "" if leads_to == location else f", a link to {leads_to!r}"
        return ModelError(
            f"weight {weight!r} points to {location!r}{link}, outside of the model's folder "
            f"{str(self._folders[0])!r}; refused, since such a path could read any file of the "
            f"machine: move the data beside the model and save it again"
        )

    def _unusable(self, weight: str, file: Path, how: str) -> ModelError:
        return ModelError(
            f"weight {weight!r} lies in {str(file)!r}, which is {how}; copy the model together "
            f"with all of its data files"
        )


def is_below(location: str) -> bool:
    """Whether a location is a relative path without "..", by the rules of any system."""
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    absolute = posix.is_absolute() or bool(windows.drive or windows.root)
    return bool(posix.parts) and not absolute and ".." not in windows.parts and "\0" not in location


def _hub_of(folder: Path) -> Path | None:
    """The folder of the model in the cache of Hugging Face, if ``folder`` is a snapshot of it."""
    for above in folder.parents:
        inside = folder.relative_to(above).parts
        if inside[0] == "snapshots" and (above / "blobs").is_dir():
            return above
    return None


def opened(path: Path) -> int:
    """A descriptor of a file of bytes; the caller closes it.

    Raises:
        ModelError: it cannot be read, or is a pipe or device, which may never end.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
            raise OSError(0, "it is no file but a pipe or device")
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> ModelError:
    """The error for a model file that cannot be opened."""
    reason = "it does not exist" if isinstance(error, FileNotFoundError) else error.strerror
    if isinstance(error, IsADirectoryError):
        reason = (
            "it is a folder; those that coexec export has written are taken by "
            "InferenceSession and coexec run, bench and serve"
        )
    return ModelError(
        f"cannot read the model {str(path)!r}: {reason}; give the path of an ONNX "
        f"file, or zoo:NAME for a built-in model"
    )
