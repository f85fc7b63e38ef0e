"""Measured times, kept in one sqlite file: by what was measured, and on what."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import xxhash

from coexec.cache import warn_once
from coexec.costs.estimated import Work

__all__ = ["Measurement", "ProfileStore"]

_FILE = "profiles-3.sqlite"
_PATIENCE_S = 10.0
"""How long to wait for other processes."""
_REFUSED = frozenset({
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOMEM,
})  # fmt: skip
"""Errors of sqlite that say nothing against the content of the file."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS measurement (
    device TEXT NOT NULL,      -- hardware.Device.key, or two of them for a link
    signature TEXT NOT NULL,   -- what was measured
    seconds REAL NOT NULL,     -- median
    spread REAL NOT NULL,      -- half the distance of the quartiles, relative to the median
    samples INTEGER NOT NULL,
    family TEXT NOT NULL,      -- equal for equal operators at different sizes; '' of a link
    macs INTEGER NOT NULL,     -- what a task computes
    moved_bytes INTEGER NOT NULL,
    checksum TEXT NOT NULL,    -- of all the above
    PRIMARY KEY (device, signature)
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A median with its spread (relative half distance of the quartiles) and number of samples."""

    seconds: float
    spread: float
    samples: int
    family: str = ""
    """Of a task: equal for equal operators at different sizes. "" for what is no task."""
    work: Work = field(default_factory=Work)
    """Of a task: what it computes and moves."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """What samples say, in seconds."""
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        spread = (high - low) / (2 * middle) if middle else 0.0
        return cls(float(middle), float(spread), len(seconds))


class ProfileStore:
    """A sqlite file of measurements. Several processes may use it at once.

    It is never an error: a damaged file is replaced by a new one, and where the disk refuses,
    measurements last as long as this object. Each is said once (`CacheWarning`).
    """

    def __init__(self, folder: Path) -> None:
        """Open the store in ``folder``, or make it."""
        self._folder = folder
        self.path = folder / _FILE
        """Each form of the store has a file of its own."""
        with suppress(OSError):  # sqlite says what is wrong
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._db = self._opened()
        except sqlite3.Error as error:
            self._db = self._replacement(error, None)

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_PATIENCE_S)
        try:
            # What is not text is damaged, and its checksum says so.
            db.text_factory = lambda raw: raw.decode(errors="replace")
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'measurement'").fetchone():
                with db:
                    db.execute(_SCHEMA)
            db.execute("SELECT * FROM measurement LIMIT 1").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def _replacement(
        self, error: sqlite3.Error, before: sqlite3.Connection | None
    ) -> sqlite3.Connection:
        """A new file, or memory where the disk is the trouble, with what ``before`` holds."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        refused = code in _REFUSED
        memory = sqlite3.connect(":memory:")
        with suppress(sqlite3.Error):
            if before is not None and refused:
                before.backup(memory)
        memory.execute(_SCHEMA)
        if before is not None:
            before.close()
        found = memory
        if not refused:
            with suppress(OSError, sqlite3.Error):
                for suffix in ("", "-journal"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                found = self._opened()
        problem = "cannot be used" if refused else "was damaged"
        warn_once(self._folder, f"the profile store {_FILE} {problem} ({error})")
        return found

    def read(self, device: str) -> dict[str, Measurement]:
        """All measurements on a device, by signature."""
        query = "SELECT * FROM measurement WHERE device = ?"
        try:
            rows = self._db.execute(query, (device,)).fetchall()
        except sqlite3.Error as error:
            self._db = self._replacement(error, self._db)
            return {}
        whole = (row for row in rows if row[-1] == _checksum(*row[:-1]))
        return {
            signature: Measurement(seconds, spread, samples, family, Work(macs, moved_bytes))
            for _, signature, seconds, spread, samples, family, macs, moved_bytes, _ in whole
        }

    def write(self, device: str, measured: Mapping[str, Measurement]) -> None:
        """Add or replace measurements, all or none."""
        values = [
            (device, s, m.seconds, m.spread, m.samples, m.family, *m.work)
            for s, m in measured.items()
        ]
        rows = [(*row, _checksum(*row)) for row in values]
        try:
            _insert(self._db, rows)
        except sqlite3.Error as error:
            self._db = self._replacement(error, self._db)
            _insert(self._db, rows)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "ProfileStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _insert(db: sqlite3.Connection, rows: Sequence[tuple[str | float, ...]]) -> None:
    values = ", ".join("?" * 9)
    with db:
        db.executemany(f"INSERT OR REPLACE INTO measurement VALUES ({values})", rows)


def _checksum(*values: str | float) -> str:
    """Of a row: sqlite notices damage to its pages, not to the numbers in them."""
    return xxhash.xxh3_64_hexdigest(repr(values).encode())
