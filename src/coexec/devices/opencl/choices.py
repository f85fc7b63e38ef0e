"""Choices that were measured on a device, remembered in a file."""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

__all__ = ["Choices"]


class Choices:
    """Names by key, for one device with one driver. Without a folder they last as long as this."""

    def __init__(self, device: str, folder: Path | None) -> None:
        """``device`` tells processor and driver: with another driver, other choices are right."""
        digest = hashlib.sha256(device.encode()).hexdigest()[:16]
        self._path = None if folder is None else folder / f"choices-{digest}.json"
        self._known = self._read()

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def set(self, key: str, name: str) -> None:
        """Remember a choice, beside those that other processes have made in the meantime."""
        self._known = self._read() | self._known | {key: name}
        if self._path is None:
            return
        with contextlib.suppress(OSError):  # not remembered, then
            handle, draft = tempfile.mkstemp(dir=self._path.parent, prefix=".draft")
            with os.fdopen(handle, "w") as file:
                json.dump(self._known, file)
            os.replace(draft, self._path)

    def _read(self) -> dict[str, str]:
        """What the file holds; nothing if it is missing or damaged."""
        if self._path is None:
            return {}
        try:
            data = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        known = data.items() if isinstance(data, dict) else ()
        return {k: v for k, v in known if isinstance(k, str) and isinstance(v, str)}
