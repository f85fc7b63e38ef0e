"""`coexec cache`: what there is, and making it smaller without breaking what stays."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coexec.cache import Cache, Entry
from coexec.cache.folder import KINDS, LIMIT_BYTES, place_of
from coexec.cache.weights import file_of
from coexec.cli.exits import CANNOT
from coexec.errors import StoreError
from tests.cli.conftest import CommandLine


@pytest.fixture
def root(cli: CommandLine) -> Path:
    """Entries "a" to "d", used in this order. Each has a weight of its own and shares another."""
    root = cli.folder / "cache"
    cache = Cache(root)
    shared = np.zeros(3000, np.uint8)
    for time_s, key in enumerate("abcd"):
        own = np.full(2000, ord(key), np.uint8)
        names = cache.weights.add([shared, own])
        assert names is not None
        kind = "plans" if key in "ab" else "models"
        cache.add(kind, key, Entry({"x": key.encode() * 100}, tuple(names)))
        os.utime(cache.root / place_of(kind, key)[0], (1e9 + time_s,) * 2)
    others = {"profiles-4.sqlite": 500, "trials/0f.json": 60, "letter.txt": 80}
    for name, size in {**others, "engine-0123456789abcdef/blob": 70}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(bytes(size))
    return root


def sizes(cli: CommandLine) -> dict[str, tuple[int, int]]:
    rows = cli.json("cache")["kinds"]
    return {row["kind"]: (row["count"], row["size_bytes"]) for row in rows if row["count"]}


def whole(root: Path, keys: str) -> bool:
    """Whether these entries are there with all of their weights, and no other."""
    cache = Cache(root)
    for key in "abcd":
        entry = cache.find("plans" if key in "ab" else "models", key)
        if (entry is not None) != (key in keys):
            return False
        if entry is not None:
            cache.weights.fetch(entry.weights)
    return True


def test_a_kind_has_a_row_in_the_table(cli: CommandLine) -> None:
    cache = Cache(cli.folder / "cache")
    for kind in KINDS:
        cache.add(kind, "a", Entry({"x": b"content"}))
    rows = [line.split() for line in cli("cache").splitlines()]
    for kind in KINDS:
        (row,) = [words for words in rows if words[0] == kind]
        assert row[1] == "1" and len(row) > 6  # the last column says what the kind holds


def test_every_byte_is_shown_once(root: Path, cli: CommandLine) -> None:
    found = cli.json("cache")
    on_disk = [p for p in root.rglob("*") if p.is_file()]
    assert sum(row["count"] for row in found["kinds"]) == len(on_disk)
    assert sum(r["size_bytes"] for r in found["kinds"]) == sum(p.stat().st_size for p in on_disk)
    rows = {row["kind"]: row for row in found["kinds"]}
    assert [rows[kind]["count"] for kind in ("plans", "models", "weights")] == [2, 2, 5]
    assert rows["weights"]["size_bytes"] == 3000 + 4 * 2000
    assert rows["plans"]["used_s"] == 1e9 + 1 and rows["kernels"]["used_s"] is None
    assert (rows["trials"]["size_bytes"], rows["engines"]["size_bytes"]) == (60, 70)
    assert (rows["other"]["count"], rows["other"]["size_bytes"]) == (1, 80)
    assert found["limit_bytes"] == LIMIT_BYTES and found["folder"] == str(root)
    assert found["limited_bytes"] == sum(rows[k]["size_bytes"] for k in (*KINDS, "weights"))
    printed = cli("cache")
    assert str(root) in printed and "of 8.00 GiB" in printed and "d ago" in printed
    assert "empty" in cli("cache", "--cache", "FOLDER/none", cache=False)
    assert not (cli.folder / "none").exists()


@pytest.mark.parametrize(("to", "left"), [("1MB", "abcd"), ("9k", "cd"), ("6k", "d"), ("0", "")])
def test_trim_removes_the_oldest_and_breaks_nothing(
    to: str, left: str, root: Path, cli: CommandLine
) -> None:
    before = sizes(cli)
    found = cli.json("cache", "trim", "--to", to)
    assert whole(root, left)
    after = sizes(cli)
    assert after.get("weights", (0, 0))[0] == (len(left) + 1 if left else 0)
    total = sum(size for _, size in before.values()) - sum(size for _, size in after.values())
    assert sum(found["freed_bytes"].values()) == total
    for kind in ("profiles", "trials", "engines", "other"):
        assert after[kind] == before[kind]


def test_clear_a_kind_and_all(root: Path, cli: CommandLine) -> None:
    cli("cache", "clear", "plans")
    assert whole(root, "cd") and sizes(cli)["weights"][0] == 3
    # Options of `coexec cache` count for the verb behind them: else another cache were cleared.
    found = cli("cache", "--cache", str(root), "--json", "clear", cache=False)
    assert '"freed_bytes"' in found and sizes(cli) == {"other": (1, 80)}
    assert not (root / "engine-0123456789abcdef").exists()
    cli("cache", "clear")
    (root / "exports" / "0" / "plans").mkdir(parents=True)
    (root / "exports" / "0" / "plans" / "any").write_bytes(bytes(90))
    assert sizes(cli) == {"exports": (1, 90), "other": (1, 80)}
    cli("cache", "clear", "exports")
    assert not (root / "exports").exists()


CHILD = """
import sys
import numpy as np
from coexec.cache import Cache, Entry
cache = Cache(sys.argv[1])
names = cache.weights.add([np.full(2000, 7, np.uint8)])
print("stored", flush=True)
sys.stdin.readline()
cache.add("plans", "late", Entry({}, tuple(names)))
"""


@pytest.mark.parametrize("verb", ["trim", "clear"])
def test_weights_that_another_process_will_refer_to_stay(
    verb: str, root: Path, cli: CommandLine
) -> None:
    words = [sys.executable, "-c", CHILD, str(root)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "stored\n"
    cli("cache", verb)
    child.communicate("\n")
    assert child.returncode == 0
    cache = Cache(root)
    entry = cache.find("plans", "late")
    assert entry is not None and cache.weights.fetch(entry.weights)


def test_weights_without_an_entry_go(root: Path, cli: CommandLine) -> None:
    before = sizes(cli)
    (name,) = Cache(root).weights.add([np.full(900, 9, np.uint8)]) or []
    os.utime(file_of(root, name), (0, 0))
    cli("cache", "trim")
    assert sizes(cli) == before


def test_files_that_cannot_be_removed(
    root: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    line = cli.refused("cache", "trim", "--to", "0", code=CANNOT)
    assert all(part in line for part in ("still", "0.00 B", "writable"))
    line = cli.refused("cache", "clear", code=CANNOT)
    assert "cannot be removed" in line and "writable" in line
    monkeypatch.undo()
    try:
        assert whole(root, "abcd")
    except StoreError:
        pytest.fail("an entry lost its weights although it stayed")
