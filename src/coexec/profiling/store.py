"""Measured times and trained predictors in one sqlite file, by device and signature."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from coexec.cache import has_substitute, substitute, warn_once
from coexec.costs.estimated import Work
from coexec.rules import BUSY

_FILE = "profiles-4.sqlite"
_PATIENCE_S = 10.0
"""Seconds to wait for other processes."""
_REFUSED = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_NOMEM,
    }
)
"""Errors of sqlite that do not mean that the content of the file is damaged."""
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Temporary errors."""
_SCHEMAS = (
    """
CREATE TABLE IF NOT EXISTS measurement (
    device TEXT NOT NULL,      -- hardware.Device.key, or two of them for a link
    signature TEXT NOT NULL,   -- what was measured
    seconds REAL NOT NULL,     -- median
    spread REAL NOT NULL,      -- half the distance of the quartiles, relative to the median
    samples INTEGER NOT NULL,
    family TEXT NOT NULL,      -- equal for equal operators at different sizes; '' of a link
    macs INTEGER NOT NULL,     -- what a task computes
    moved_bytes INTEGER NOT NULL,
    others REAL NOT NULL,      -- share of the processors' time that other programs used meanwhile
    checksum TEXT NOT NULL,    -- of all the above
    PRIMARY KEY (device, signature)
) WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS predictor (
    device TEXT NOT NULL,      -- hardware.Device.key
    kind TEXT NOT NULL,        -- of kernel
    numbers TEXT NOT NULL,     -- see coexec.research.predictor.latency
    checksum TEXT NOT NULL,
    PRIMARY KEY (device, kind)
) WITHOUT ROWID
""",
)
_TABLES = ("measurement", "predictor")


@dataclass(frozen=True, slots=True)
class Measurement:
    """A median with its spread (relative half distance of the quartiles) and number of samples."""

    seconds: float
    spread: float
    samples: int
    family: str = ""
    """For a task: equal for equal operators at different sizes. "" for other measurements."""
    work: Work = field(default_factory=Work)
    """For a task: its operations and bytes."""
    others: float = 0.0
    """Share of the processor time that other programs used during the measurement."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs used too much processor time for a valid measurement."""
        return self.others > BUSY

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """The measurement of these samples, in seconds."""
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        spread = (high - low) / (2 * middle) if middle else 0.0
        return cls(float(middle), float(spread), len(seconds))


class ProfileStore:
    """A sqlite file of measurements. Several processes may use it at once.

    Problems with the file raise no error. A damaged file is replaced by a new one. If the disk
    refuses access, measurements last as long as this process; if the file is locked, as long as
    this object. There is one warning for each (`CacheWarning`).
    """

    def __init__(self, folder: Path, patience_s: float = _PATIENCE_S) -> None:
        """Open the store in ``folder``; make it if it does not exist.

        Args:
            patience_s: seconds to wait for other processes.
        """
        self._folder, self._patience_s = folder, patience_s
        kept = (has_substitute(folder) or folder) / _FILE
        self.path = kept if kept.is_file() else folder / _FILE
        """The file; each version of the schema has a file of its own."""
        with suppress(OSError):  # then sqlite reports the problem
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._db = self._opened()
        except sqlite3.Error as error:
            self._db = self._replacement(error, None)

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=self._patience_s)
        try:
            # Bytes that are no text are damaged. The checksum of the row detects it.
            db.text_factory = lambda raw: raw.decode(errors="replace")
            there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            if not there.issuperset(_TABLES):
                with db:
                    _make_tables(db)
            for table in _TABLES:
                db.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def _replacement(
        self, error: sqlite3.Error, before: sqlite3.Connection | None
    ) -> sqlite3.Connection:
        """A database to use after ``error``, with the rows of ``before`` if they can be read.

        If the file was damaged, a new file. If the disk refuses access, a file in a substitute
        folder. If the file is locked, or there is no such folder, memory.
        """
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        refused = code in _REFUSED
        memory = sqlite3.connect(":memory:")
        with suppress(sqlite3.Error):
            if before is not None and refused:
                before.backup(memory)
        _make_tables(memory)
        if before is not None:
            before.close()
        database = memory if code in _BUSY or not refused else self._stand_in(memory)
        if not refused:
            with suppress(OSError, sqlite3.Error):
                for suffix in ("", "-journal"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                database = self._opened()
                memory.close()
        problem = "cannot be used" if refused else "was damaged"
        warn_once(self._folder, f"the profile store {_FILE} {problem} ({error})")
        return database

    def _stand_in(self, memory: sqlite3.Connection) -> sqlite3.Connection:
        """A file that lasts as long as this process; a new file gets the rows of ``memory``. If no
        file can be made, ``memory``."""
        folder = substitute(self._folder)
        if folder is None or folder / _FILE == self.path:
            return memory
        new, path = not (folder / _FILE).exists(), self.path
        self.path = folder / _FILE
        try:
            database = self._opened()
            if new:
                memory.backup(database)
        except sqlite3.Error:
            self.path = path
            return memory
        memory.close()
        return database

    def read(self, device: str) -> dict[str, Measurement]:
        """All measurements on a device, by signature."""
        measurements = {}
        for _, signature, *figures in self._rows("measurement", device):
            seconds, spread, samples, family, macs, moved_bytes, share = figures
            work = Work(macs, moved_bytes)
            measurements[signature] = Measurement(seconds, spread, samples, family, work, share)
        return measurements

    def read_predictor(self, device: str) -> dict[str, str]:
        """The predictor of a device: numbers as text, by kind of kernel; empty without one."""
        return {kind: numbers for _, kind, numbers in self._rows("predictor", device)}

    def trained(self) -> list[str]:
        """The keys of all devices with a trained predictor."""
        rows = self._found("SELECT DISTINCT device FROM predictor ORDER BY device")
        return [device for (device,) in rows]

    def _rows(self, table: str, device: str) -> list[tuple[Any, ...]]:
        """The rows of a device with a correct checksum, without the checksum."""
        rows = self._found(f"SELECT * FROM {table} WHERE device = ?", device)
        return [row[:-1] for row in rows if row[-1] == _checksum(*row[:-1])]

    def _found(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            self._db = self._replacement(error, self._db)
            return []

    def write(self, device: str, measured: Mapping[str, Measurement]) -> None:
        """Add or replace measurements, all or none."""
        self._insert(
            "measurement",
            [
                (device, s, m.seconds, m.spread, m.samples, m.family, *m.work, m.others)
                for s, m in measured.items()
            ],
        )

    def write_predictor(self, device: str, kinds: Mapping[str, str]) -> None:
        """Replace the predictor of a device, all rows or none: numbers as text, by kind."""
        rows = [(device, kind, numbers) for kind, numbers in kinds.items()]
        self._insert("predictor", rows, "DELETE FROM predictor WHERE device = ?", device)

    def _insert(
        self, table: str, rows: Sequence[tuple[str | float, ...]], before: str = "", *values: str
    ) -> None:
        """Add or replace rows, all or none, after the statement ``before``."""
        checked = [(*row, _checksum(*row)) for row in rows]
        try:
            _insert(self._db, table, checked, before, values)
        except sqlite3.Error as error:
            self._db = self._replacement(error, self._db)
            _insert(self._db, table, checked, before, values)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "ProfileStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_tables(db: sqlite3.Connection) -> None:
    for schema in _SCHEMAS:
        db.execute(schema)


def _insert(
    db: sqlite3.Connection,
    table: str,
    rows: Sequence[tuple[str | float, ...]],
    before: str,
    values: Sequence[str],
) -> None:
    with db:
        if before:
            db.execute(before, values)
        if rows:
            places = ", ".join("?" * len(rows[0]))
            db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)


def _checksum(*values: str | float) -> str:
    """Checksum of a row: sqlite detects damage to its pages, but not to the numbers in them."""
    return xxhash.xxh3_64_hexdigest(repr(values).encode())
