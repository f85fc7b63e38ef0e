"""The installation: packages by extra, the run loop, the cache."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path

from coexec.cache import Cache
from coexec.cache.contents import contents
from coexec.extras import BRINGS, EXTRAS, install

__all__ = ["CacheState", "Extra", "cache_state", "core_packages", "extras", "other_packages"]

_FAMILIES = ("onnxruntime", "openvino", "pyopencl", "intel-opencl", "pocl")
"""Beginnings of names of packages that replace each other or disturb each other."""


@dataclass(frozen=True)
class Extra:
    """An extra of coexec."""

    name: str
    versions: Mapping[str, str | None]
    """By package; None: not installed."""
    brings: str
    command: str
    """Installs the packages."""

    @property
    def is_complete(self) -> bool:
        return None not in self.versions.values()


def core_packages() -> Mapping[str, str | None]:
    """Versions of the packages that coexec always needs; None: not installed."""
    try:
        lines = requires("coexec") or []
    except PackageNotFoundError:
        lines = []
    names = [_name(line) for line in lines if "extra ==" not in line]
    return {name: _version(name) for name in names}


def _name(requirement: str) -> str:
    """ "numpy>=2.4.6" as "numpy"."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), None)
    return requirement[:end]


def extras() -> Sequence[Extra]:
    return [
        Extra(name, {p: _version(p) for p in packages}, BRINGS[name], install(name))
        for name, packages in EXTRAS.items()
    ]


def other_packages(known: Iterable[str]) -> Mapping[str, str]:
    """Versions of further packages of the same libraries: two that bring the same module, such as
    onnxruntime and onnxruntime-gpu, overwrite each other's files."""
    names = {name for name in _all_versions() if name.startswith(_FAMILIES)}
    return {name: _all_versions()[name] for name in sorted(names - set(known))}


@cache
def _all_versions() -> Mapping[str, str]:
    found = {}
    for package in distributions():
        name = package.metadata["Name"]
        if name:  # a package that was removed by half has none
            found[name.lower().replace("_", "-")] = package.version
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class CacheState:
    """The cache folder."""

    folder: str
    exists: bool
    size_bytes: int
    limit_bytes: int
    free_bytes: int
    """On its disk."""
    why_not_writable: str
    """"" if files can be written."""


def cache_state(cache: Cache) -> CacheState:
    """The state of the cache folder, or of the folder in which it would be made.

    Raises:
        OSError: its disk cannot be read.
    """
    parents = (cache.root, *cache.root.parents)
    nearest = next((folder for folder in parents if folder.is_dir()), Path("/"))
    return CacheState(
        str(cache.root),
        cache.root.is_dir(),
        sum(content.size_bytes for content in contents(cache.root)),
        cache.limit_bytes,
        shutil.disk_usage(nearest).free,
        _why_not_writable(nearest),
    )


def _why_not_writable(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)
