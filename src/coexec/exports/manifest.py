"""The manifest of an export: its files with their digests, its inputs, and its machine.

The manifest has a digest of its own content, which reveals damage and edits by hand. It is no
signature: a program that changes an export can also compute a new digest.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, Self

import xxhash

from coexec.__about__ import __version__
from coexec.errors import StoreError
from coexec.exports import MANIFEST
from coexec.exports.machine import ExportMachine
from coexec.model.folders import is_below

__all__ = ["AGAIN", "PARTS", "PLAN", "FileFacts", "Manifest", "digest_of_bytes", "file_below"]

PLAN = "plan.json"
PARTS = "parts"
"""The folder of compiled parts. The paths below it are the same as in a cache."""
_KIND = "coexec export"
_FORMAT = 1
_MOST_BYTES = 64 << 20
AGAIN = "copy the whole folder again, or export the model again with coexec export"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of an export."""

    size_bytes: int
    xxh3: str
    """Its digest, xxh3-128 in hexadecimal digits."""


@dataclass(frozen=True)
class Manifest:
    """The facts of an export, without the content of its files."""

    model: str
    """The model's file, below the folder."""
    inputs: Mapping[str, Mapping[str, Any]]
    """By name of an input, its "shape" and "dtype" in the plan."""
    engine_options: Mapping[str, Mapping[str, str]]
    machine: ExportMachine
    """The machine on which it was made."""
    files: Mapping[str, FileFacts]
    """By path below the folder, with "/"; without the manifest."""

    @property
    def digest(self) -> str:
        """A digest of the manifest's content. Different exports have different digests."""
        return digest_of_bytes(json.dumps(self._body(), sort_keys=True).encode())

    def _body(self) -> dict[str, Any]:
        return {
            "kind": _KIND,
            "format": _FORMAT,
            "coexec": self.machine.coexec,
            "model": self.model,
            "inputs": {name: dict(facts) for name, facts in self.inputs.items()},
            "engine_options": {name: dict(texts) for name, texts in self.engine_options.items()},
            "machine": self.machine.to_json(),
            "files": {name: asdict(facts) for name, facts in self.files.items()},
        }

    def to_json(self) -> str:
        """The manifest as readable text. `read` reads it."""
        return json.dumps({**self._body(), "digest": self.digest}, indent=1)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of an export.

        Raises:
            StoreError: it is missing, damaged, edited or of another format.
        """
        path = file_below(folder, MANIFEST)
        try:
            with path.open("rb") as file:
                data = json.loads(file.read(_MOST_BYTES))
            if data["kind"] != _KIND:
                raise ValueError(f"its kind is {data['kind']!r} and not {_KIND!r}")
            if data["format"] != _FORMAT:
                raise StoreError(
                    f"the export {str(folder)!r} has format {data['format']!r}, written by coexec "
                    f"{data.get('coexec')!s:.40}, and this coexec {__version__} reads {_FORMAT}; "
                    f"export the model again with this version"
                )
            digest = data.pop("digest")
            if digest != (
                actual_digest := digest_of_bytes(json.dumps(data, sort_keys=True).encode())
            ):
                raise ValueError(
                    f"it was changed since it was written: it says digest "
                    f"{digest!s:.40}, and has {actual_digest}"
                )
            return cls(
                _name(data["model"]),
                {str(n): dict(facts) for n, facts in data["inputs"].items()},
                {str(n): dict(options) for n, options in data["engine_options"].items()},
                ExportMachine.from_json(data["machine"], str(data["coexec"])),
                {
                    _name(n): FileFacts(int(f["size_bytes"]), str(f["xxh3"]))
                    for n, f in data["files"].items()
                },
            )
        except StoreError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
            raise StoreError(f"the manifest {str(path)!r} is damaged: {reason}; {AGAIN}") from None


def _name(name: Any) -> str:
    """``name``, checked that it is a path below the folder.

    Raises:
        ValueError: it is no such path.
    """
    if not isinstance(name, str) or not is_below(name) or str(PurePosixPath(name)) != name:
        raise ValueError(f"it names {name!r}, which is no path below its folder")
    return name


def file_below(folder: Path, name: str, size_bytes: int | None = None) -> Path:
    """A regular file of an export.

    Raises:
        StoreError: it is missing, a link, no regular file, or has another size.
    """
    path = folder
    try:
        for part in PurePosixPath(name).parts:
            path = path / part
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                _refuse(folder, name, f"{str(path)!r} is a symbolic link, and may lead anywhere")
        if not stat.S_ISREG(mode):
            _refuse(folder, name, "it is no regular file")
        size = path.lstat().st_size
    except OSError as error:
        _refuse(folder, name, error.strerror or str(error))
    if size_bytes is not None and size != size_bytes:
        _refuse(folder, name, f"it has {size} bytes, and the manifest says {size_bytes}")
    return path


def _refuse(folder: Path, name: str, why: str) -> NoReturn:
    raise StoreError(f"the export {str(folder)!r} is damaged at {name!r}: {why}; {AGAIN}")


def digest_of_bytes(content: bytes) -> str:
    """The digest of ``content``, as in `FileFacts.xxh3`."""
    return xxhash.xxh3_128_hexdigest(content)
