"""`coexec cache`: what there is, and making it smaller without breaking what stays."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coexec.cache import Cache, Entry
from coexec.cache.folder import KINDS, LIMIT_BYTES, place_of
from coexec.cli import main
from coexec.errors import StoreError


def fill(root: Path) -> Cache:
    """Entries "a" to "d", used in this order. Each has a weight of its own and shares another."""
    cache = Cache(root)
    shared = np.zeros(3000, np.uint8)
    for time_s, key in enumerate("abcd"):
        own = np.full(2000, ord(key), np.uint8)
        names = cache.weights.add([shared, own])
        assert names is not None
        kind = "plans" if key in "ab" else "models"
        cache.add(kind, key, Entry({"x": key.encode() * 100}, tuple(names)))
        os.utime(cache.root / place_of(kind, key)[0], (1e9 + time_s,) * 2)
    (root / "profiles-4.sqlite").write_bytes(bytes(500))
    (root / "trials").mkdir()
    (root / "trials" / "0f.json").write_bytes(bytes(60))
    (root / "engine-0123456789abcdef").mkdir()
    (root / "engine-0123456789abcdef" / "blob").write_bytes(bytes(70))
    (root / "letter.txt").write_bytes(bytes(80))
    return cache


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "c")  # the writer is collected: only its entries are left
    return tmp_path / "c"


def call(capfd: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["cache", *words, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def sizes(capfd: pytest.CaptureFixture[str], root: Path) -> dict[str, tuple[int, int]]:
    kinds = call(capfd, "--cache", str(root))["kinds"]
    return {row["kind"]: (row["count"], row["size_bytes"]) for row in kinds if row["count"]}


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


def test_a_kind_has_a_row_in_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cache = Cache(tmp_path / "c")
    for kind in KINDS:
        cache.add(kind, "a", Entry({"x": b"content"}))
    assert main(["cache", "--cache", str(tmp_path / "c")]) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    for kind in KINDS:
        (row,) = [words for words in rows if words[0] == kind]
        assert row[1] == "1" and len(row) > 6  # the last column says what the kind holds


def test_every_byte_is_shown_once(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = call(capfd, "--cache", str(root))
    on_disk = [p for p in root.rglob("*") if p.is_file()]
    assert sum(row["count"] for row in found["kinds"]) == len(on_disk)
    assert sum(r["size_bytes"] for r in found["kinds"]) == sum(p.stat().st_size for p in on_disk)
    rows = {row["kind"]: row for row in found["kinds"]}
    assert (rows["plans"]["count"], rows["models"]["count"], rows["weights"]["count"]) == (2, 2, 5)
    assert rows["weights"]["size_bytes"] == 3000 + 4 * 2000
    assert rows["plans"]["used_s"] == 1e9 + 1 and rows["kernels"]["used_s"] is None
    assert (rows["trials"]["size_bytes"], rows["engines"]["size_bytes"]) == (60, 70)
    assert (rows["other"]["count"], rows["other"]["size_bytes"]) == (1, 80)
    assert found["limit_bytes"] == LIMIT_BYTES and found["folder"] == str(root)
    assert found["limited_bytes"] == sum(rows[k]["size_bytes"] for k in (*KINDS, "weights"))


def test_it_is_printed(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--cache", str(root)]) == 0
    printed = capfd.readouterr().out
    assert str(root) in printed and "of 8.00 GiB" in printed and "d ago" in printed
    assert main(["cache", "--cache", str(root / "none")]) == 0
    assert "empty" in capfd.readouterr().out and not (root / "none").exists()


@pytest.mark.parametrize(("to", "left"), [("1MB", "abcd"), ("9k", "cd"), ("6k", "d"), ("0", "")])
def test_trim_removes_the_oldest_and_breaks_nothing(
    to: str, left: str, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sizes(capfd, root)
    found = call(capfd, "trim", "--to", to, "--cache", str(root))
    assert whole(root, left)
    after = sizes(capfd, root)
    assert after.get("weights", (0, 0))[0] == (len(left) + 1 if left else 0)
    total = sum(size for _, size in before.values()) - sum(size for _, size in after.values())
    assert sum(found["freed_bytes"].values()) == total
    for kind in ("profiles", "trials", "engines", "other"):
        assert after[kind] == before[kind]


def test_clear_a_kind_and_all(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call(capfd, "clear", "plans", "--cache", str(root))
    assert whole(root, "cd") and sizes(capfd, root)["weights"][0] == 3
    # Options of `coexec cache` count for the verb behind them: else another cache were cleared.
    call(capfd, "--cache", str(root), "clear")
    assert sizes(capfd, root) == {"other": (1, 80)}
    assert not (root / "engine-0123456789abcdef").exists()
    call(capfd, "clear", "--cache", str(root))


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


def test_an_entry_whose_weights_were_cleared_is_made_again(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another process stores weights before the entry that refers to them."""
    words = [sys.executable, "-c", CHILD, str(root)]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "stored\n"
    call(capfd, "clear", "--cache", str(root))
    child.communicate("\n")
    assert child.returncode == 0
    cache = Cache(root)
    entry = cache.find("plans", "late")
    assert entry is not None
    with pytest.raises(StoreError, match="not in the cache any more"):
        cache.weights.fetch(entry.weights)


def test_weights_without_an_entry_go(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sizes(capfd, root)
    Cache(root).weights.add([np.full(900, 9, np.uint8)])
    call(capfd, "trim", "--cache", str(root))
    assert sizes(capfd, root) == before


def refuse(
    capfd: pytest.CaptureFixture[str], words: list[str], *parts: str, expected: int = 2
) -> None:
    assert main(["cache", *words]) == expected
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.startswith("coexec: ") and "Traceback" not in said
    for part in parts:
        assert part in said


@pytest.mark.parametrize(
    "size", ["", "-1", "much", "nan", "1e3", "8Gbit", "1GB/s", "9" * 400, "1 2", "0x10", "∞"]
)
def test_sizes_that_are_none(size: str, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refuse(capfd, ["trim", f"--to={size}", "--cache", str(root)], "8GB")
    assert whole(root, "abcd")


def test_kinds_that_are_none(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refuse(capfd, ["clear", "../..", "--cache", str(root)], "'../..'", "plans", "trials")
    refuse(capfd, ["clear", "weights", "--cache", str(root)], "entries that need them")
    refuse(capfd, ["clear", "other", "--cache", str(root)], "'other'")
    assert whole(root, "abcd")


def test_a_cache_that_is_no_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for words in ([], ["trim"], ["clear"]):
        refuse(capfd, [*words, "--cache", str(tmp_path / "file")], "cannot be read", "--cache DIR")


def test_files_that_cannot_be_removed(
    root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    cleared = ["clear", "--cache", str(root)]
    trimmed = ["trim", "--to", "0", "--cache", str(root)]
    refuse(capfd, trimmed, "still", "0.00 B", "writable", expected=3)
    refuse(capfd, cleared, "cannot be removed", "writable", expected=3)
    monkeypatch.undo()
    try:
        assert whole(root, "abcd")
    except StoreError:
        pytest.fail("an entry lost its weights although it stayed")


def test_what_exports_have_is_a_kind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "exports" / "0" / "plans"
    kept.mkdir(parents=True)
    (kept / "any").write_bytes(bytes(90))
    assert sizes(capfd, tmp_path) == {"exports": (1, 90)}
    call(capfd, "clear", "exports", "--cache", str(tmp_path))
    assert not (tmp_path / "exports").exists()
