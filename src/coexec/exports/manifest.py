"""The manifest of an export: what neither its plan nor the entries of the cache say."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from coexec.__about__ import __version__
from coexec.cache import Cache
from coexec.codec import decode, encode
from coexec.engines import detect
from coexec.errors import StoreError
from coexec.exports import MANIFEST
from coexec.hardware.hardware import Device
from coexec.keys import digest
from coexec.model.digest import digest_of
from coexec.model.folders import is_below

PLAN = "plan.json"
PARTS = "parts"
"""The folder of cache entries. The paths below it are the same as in a cache."""
AGAIN = "copy the whole folder again, or export the model again with coexec export"
_FORMAT = 2
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Manifest:
    """The facts of an export, without the content of its files."""

    model: str
    """The model's file, below the folder."""
    digest: str
    """Digest of the model, its weights and its plan."""
    engine_options: Mapping[str, Mapping[str, str]]
    machine: Mapping[str, str]
    """`machine_facts` of the machine on which it was made."""
    files: Mapping[str, int]
    """Bytes of each file by its path below the folder, with "/"; without the manifest."""

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``.

        Raises:
            OSError: it cannot be written.
        """
        text = json.dumps({"format": _FORMAT, **encode(self)}, indent=1)
        (folder / MANIFEST).write_text(text)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of an export. `check_files` checks the files that it names.

        Raises:
            StoreError: it is missing, damaged or of another format.
        """
        try:
            with (folder / MANIFEST).open("rb") as file:
                data = json.loads(file.read(_MOST_BYTES))
            if (form := data.pop("format")) != _FORMAT:
                made_by = data.get("coexec") or data.get("machine", {}).get("coexec")
                raise StoreError(
                    f"the export {str(folder)!r} has format {form!r}, written by coexec "
                    f"{made_by!s:.40}, and this coexec {__version__} reads {_FORMAT}; export the "
                    f"model again with this version"
                )
            manifest = decode(cls, data)
        except StoreError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(folder, MANIFEST, f"{type(error).__name__}: {error}") from None
        for name in manifest.files:
            if not is_below(name):
                raise damaged(folder, name, "it is no path below the folder")
        for name in (manifest.model, PLAN):
            if name not in manifest.files:
                raise damaged(folder, name, "it is none of the files in the manifest")
        return manifest

    def check_files(self, folder: Path, beginning: str = "") -> None:
        """Check that the files are there with their sizes.

        Args:
            beginning: of the paths of the files that are checked.

        Raises:
            StoreError: a file is missing or has another size.
        """
        for name, wanted in self.files.items():
            if not name.startswith(beginning):
                continue
            try:
                size = (folder / name).stat().st_size
            except OSError as error:
                raise damaged(folder, name, error.strerror or str(error)) from None
            if size != wanted:
                raise damaged(folder, name, f"it has {size} bytes, and the manifest says {wanted}")


def damaged(folder: Path, name: str, why: str) -> StoreError:
    """The error for a file of an export."""
    return StoreError(f"the export {str(folder)!r} is damaged at {name!r}: {why}; {AGAIN}")


def content_digest(model: Path, plan: Path, cache: Cache | None = None) -> str:
    """A digest of a model's file, the files with weights that it names, and its plan.

    Args:
        cache: holds digests of files that have not changed.

    Raises:
        OSError, ModelError: a file cannot be read.
    """
    return digest(digest_of(model, {}, {}, cache), plan.read_bytes())


def machine_facts(devices: Iterable[Device]) -> Mapping[str, str]:
    """The facts about this machine on which the times of a plan for ``devices`` depend, by the
    words that name them in a message."""
    cores = (str(len(members)) for members, _ in detect.clusters())
    facts = {
        "coexec": __version__,
        "processor": detect.processor_name(),
        "cores": "+".join(cores) or "0",
    }
    for device in devices:
        if device.features:
            facts["instruction sets"] = device.features
        if device.processor != facts["processor"]:
            facts[f"processor of {device.name}"] = device.processor
        if device.max_frequency_hz:
            facts[f"frequency of {device.name}"] = f"{device.max_frequency_hz / 1e9:.2f} GHz"
        engine = device.engine
        facts[f"{engine.name} of {device.name}"] = f"{engine.version} in {engine.precision}"
    return facts
