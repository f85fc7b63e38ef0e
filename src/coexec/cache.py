"""The folder where what takes long is kept: models, lowered models, plans, profiles."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from coexec.errors import StoreError

__all__ = ["Cache", "default_cache_folder"]


def default_cache_folder() -> Path:
    """The user's cache folder for coexec, as the operating system wants it."""
    return Path(platformdirs.user_cache_dir("coexec"))


class Cache:
    """Folders by kind and key, each written completely or not at all."""

    def __init__(self, root: Path | str | None = None) -> None:
        """Use ``root``, made if it is missing.

        Raises:
            StoreError: the folder cannot be made or written.
        """
        self.root = Path(root) if root is not None else default_cache_folder()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not os.access(self.root, os.W_OK | os.X_OK):
                raise PermissionError("it is read-only")
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(
            f"the cache folder {str(self.root)!r} cannot be written: "
            f"{error.strerror or error}; make it writable or choose another with --cache DIR "
            f"(InferenceSession: cache=DIR)"
        )

    @property
    def profiles(self) -> Path:
        """The file of the profile store."""
        return self.root / "profiles.sqlite"

    def folder(self, kind: str) -> Path:
        """A folder for files of one kind, made if it is missing."""
        path = self.root / kind
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None
        return path

    def find(self, kind: str, key: str) -> Path | None:
        """The folder stored under ``key``, if there is one."""
        folder = self.root / kind / key
        return folder if folder.is_dir() else None

    def add(self, kind: str, key: str, fill: Callable[[Path], None]) -> Path:
        """Let ``fill`` write into a new folder, which then appears under ``key`` at once.

        If another process was quicker, its folder is kept.
        """
        target = self.root / kind / key
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fill(draft)
            try:
                draft.rename(target)
            except OSError as error:
                if not target.is_dir():
                    raise self._unusable(error) from None
            return target
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def drop(self, kind: str, key: str) -> None:
        """Forget what is stored under ``key``, for example because it is damaged."""
        target = self.root / kind / key
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)
