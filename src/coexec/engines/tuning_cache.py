"""Results of tuning on a device: the chosen kernel variants and work groups, stored in the
cache."""

import json
from pathlib import Path

from coexec.cache import Cache, Entry
from coexec.engines.detect import processor_features


class Choices:
    """Names of choices by key, for one device with one driver. Without a folder, only this object
    keeps them."""

    def __init__(self, device: str, folder: Path | None) -> None:
        """``device`` names processor and driver: with another driver, another choice may be
        faster."""
        self._cache = None if folder is None else Cache(folder)
        self._device = f"{device} {processor_features()}"
        self._known = self._read()

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def set(self, key: str, name: str) -> None:
        """Store a choice, and keep those that other processes have stored in the meantime."""
        self._known = self._read() | self._known | {key: name}
        if self._cache is not None:
            content = json.dumps(self._known).encode()
            self._cache.add("tuning", self._device, Entry({"choices.json": content}))

    def _read(self) -> dict[str, str]:
        """The choices in the cache; empty if the entry is missing or damaged."""
        entry = None if self._cache is None else self._cache.find("tuning", self._device)
        if entry is None:
            return {}
        choices: dict[str, str] = json.loads(entry.files["choices.json"])
        return choices
