"""Measured times, and what was learnt of them, in one sqlite file: by what was measured, and on
what."""

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
from coexec.profiling.processors import BUSY

__all__ = ["Measurement", "ProfileStore"]

_FILE = "profiles-4.sqlite"
_PATIENCE_S = 10.0
"""How long to wait for other processes."""
_REFUSED = frozenset({
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOMEM,
})  # fmt: skip
"""Errors of sqlite that say nothing against the content of the file."""
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Those that pass."""
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
    numbers TEXT NOT NULL,     -- see coexec.costs.predictor
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
    """Of a task: equal for equal operators at different sizes. "" for what is no task."""
    work: Work = field(default_factory=Work)
    """Of a task: what it computes and moves."""
    others: float = 0.0
    """The share of the processors' time that other programs used meanwhile."""

    @property
    def is_disturbed(self) -> bool:
        """Whether it tells less of the place than of what else ran there."""
        return self.others > BUSY

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """What samples say, in seconds."""
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        spread = (high - low) / (2 * middle) if middle else 0.0
        return cls(float(middle), float(spread), len(seconds))


class ProfileStore:
    """A sqlite file of measurements. Several processes may use it at once.

    It is never an error: a damaged file is replaced by a new one, and where the disk refuses,
    measurements last as long as this process, or as this object while the file is locked. Each is
    said once (`CacheWarning`).
    """

    def __init__(self, folder: Path) -> None:
        """Open the store in ``folder``, or make it."""
        self._folder = folder
        kept = (has_substitute(folder) or folder) / _FILE
        self.path = kept if kept.is_file() else folder / _FILE
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
        """A new file, or memory where the disk is the trouble, with what ``before`` holds."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        refused = code in _REFUSED
        memory = sqlite3.connect(":memory:")
        with suppress(sqlite3.Error):
            if before is not None and refused:
                before.backup(memory)
        _make_tables(memory)
        if before is not None:
            before.close()
        found = memory if code in _BUSY or not refused else self._stand_in(memory)
        if not refused:
            with suppress(OSError, sqlite3.Error):
                for suffix in ("", "-journal"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                found = self._opened()
                memory.close()
        problem = "cannot be used" if refused else "was damaged"
        warn_once(self._folder, f"the profile store {_FILE} {problem} ({error})")
        return found

    def _stand_in(self, memory: sqlite3.Connection) -> sqlite3.Connection:
        """A file for as long as this process lasts, with what ``memory`` holds if it is new; that
        itself where no file can be made."""
        folder = substitute(self._folder)
        if folder is None or folder / _FILE == self.path:
            return memory
        new, path = not (folder / _FILE).exists(), self.path
        self.path = folder / _FILE
        try:
            found = self._opened()
            if new:
                memory.backup(found)
        except sqlite3.Error:
            self.path = path
            return memory
        memory.close()
        return found

    def read(self, device: str) -> dict[str, Measurement]:
        """All measurements on a device, by signature."""
        return {
            signature: Measurement(
                seconds, spread, samples, family, Work(macs, moved_bytes), others
            )
            for _, signature, seconds, spread, samples, family, macs, moved_bytes, others
            in self._rows("measurement", device)
        }  # fmt: skip

    def read_predictor(self, device: str) -> dict[str, str]:
        """What was trained on a device: numbers as text by kind of kernel; empty if nothing was."""
        return {kind: numbers for _, kind, numbers in self._rows("predictor", device)}

    def trained(self) -> list[str]:
        """The devices that a predictor was trained on."""
        rows = self._found("SELECT DISTINCT device FROM predictor ORDER BY device")
        return [device for (device,) in rows]

    def _rows(self, table: str, device: str) -> list[tuple[Any, ...]]:
        """The sound rows of a device, without their checksums."""
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
        self._insert("measurement", [
            (device, s, m.seconds, m.spread, m.samples, m.family, *m.work, m.others)
            for s, m in measured.items()
        ])  # fmt: skip

    def write_predictor(self, device: str, kinds: Mapping[str, str]) -> None:
        """Replace what was trained on a device, all or nothing: numbers as text by kind."""
        rows = [(device, kind, numbers) for kind, numbers in kinds.items()]
        self._insert("predictor", rows, "DELETE FROM predictor WHERE device = ?", device)

    def _insert(
        self, table: str, rows: Sequence[tuple[str | float, ...]], before: str = "", *values: str
    ) -> None:
        """Add or replace rows, all or none, behind the statement ``before``."""
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
    db: sqlite3.Connection, table: str, rows: Sequence[tuple[str | float, ...]], before: str,
    values: Sequence[str],
) -> None:  # fmt: skip
    with db:
        if before:
            db.execute(before, values)
        if rows:
            places = ", ".join("?" * len(rows[0]))
            db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)


def _checksum(*values: str | float) -> str:
    """Of a row: sqlite notices damage to its pages, not to the numbers in them."""
    return xxhash.xxh3_64_hexdigest(repr(values).encode())
