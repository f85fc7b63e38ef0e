"""Measured times, kept in one sqlite file: by what was measured, and on what."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from coexec.errors import StoreError

__all__ = ["Measurement", "ProfileStore"]

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS measurement (
    device TEXT NOT NULL,      -- hardware.Device.key, or two of them for a link
    signature TEXT NOT NULL,   -- what was measured
    seconds REAL NOT NULL,     -- median
    spread REAL NOT NULL,      -- half the distance of the quartiles, relative to the median
    samples INTEGER NOT NULL,
    PRIMARY KEY (device, signature)
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A median with its spread (relative half distance of the quartiles) and number of samples."""

    seconds: float
    spread: float
    samples: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """What samples say, in seconds."""
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        spread = (high - low) / (2 * middle) if middle else 0.0
        return cls(float(middle), float(spread), len(seconds))


class ProfileStore:
    """A sqlite file of measurements. Several processes may use it at once."""

    def __init__(self, path: Path) -> None:
        """Open or make the store.

        Raises:
            StoreError: the file is damaged, of another version, or cannot be written.
        """
        self.path = path
        try:
            self._db = sqlite3.connect(path, timeout=30.0)
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
            if version not in (0, _VERSION):
                raise StoreError(f"the profile store {str(path)!r} has version {version}, this "
                                 f"coexec reads {_VERSION}; delete the file")  # fmt: skip
            if version == 0:
                with self._db:
                    self._db.execute(_SCHEMA)
                    self._db.execute(f"PRAGMA user_version = {_VERSION}")
            self._db.execute("SELECT device, signature, seconds FROM measurement LIMIT 1")
        except sqlite3.Error as error:
            raise self._damaged(error) from None

    def _damaged(self, error: sqlite3.Error) -> StoreError:
        return StoreError(
            f"the profile store {str(self.path)!r} cannot be used: {error}; delete the file, "
            f"the next profile makes it anew"
        )

    def read(self, device: str) -> dict[str, Measurement]:
        """All measurements on a device, by signature."""
        query = "SELECT signature, seconds, spread, samples FROM measurement WHERE device = ?"
        try:
            rows = self._db.execute(query, (device,)).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        return {signature: Measurement(*numbers) for signature, *numbers in rows}

    def write(self, device: str, measured: Mapping[str, Measurement]) -> None:
        """Add or replace measurements, all or none."""
        rows: Iterable[tuple[str, str, float, float, int]] = (
            (device, s, m.seconds, m.spread, m.samples) for s, m in measured.items()
        )
        try:
            with self._db:
                self._db.executemany(
                    "INSERT OR REPLACE INTO measurement VALUES (?, ?, ?, ?, ?)", rows
                )
        except sqlite3.Error as error:
            raise self._damaged(error) from None

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "ProfileStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
