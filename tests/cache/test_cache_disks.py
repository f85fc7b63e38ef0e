"""The cache is never an error: disks that refuse, processes that are killed."""

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coexec.cache import Cache, Entry, files, private_folder
from coexec.cache.files import sweep
from coexec.errors import CacheWarning
from tests.helpers.harmed import DEVICES, answer, same


@contextmanager
def mounted(folder: Path, *words: str) -> Iterator[None]:
    """A file system in the place of ``folder``; skips where this process may not mount."""
    done = subprocess.run(["mount", *words, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting needs root: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_warm_cache_that_is_read_only(model: Path, copy: Path, expected: list[Any]) -> None:
    with mounted(copy, "--bind", str(copy)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(copy)], check=True)
        assert same(answer(model, copy), expected)  # without a warning
        with pytest.warns(CacheWarning, match="Read-only") as said:
            assert same(answer(model, copy, "hope_greedy"), expected)
        assert len(said) == 1


@pytest.mark.parametrize("size", ["64k", "256k", "1m"])
def test_a_disk_that_is_too_small(
    size: str, model: Path, tmp_path: Path, expected: list[Any]
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            for _ in range(2):
                assert same(answer(model, folder), expected)
        assert not list(folder.glob("drafts/*"))


@pytest.mark.sampled(15)
@pytest.mark.parametrize("number", [*range(12), 20, 40])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_write_that_fails(
    number: int,
    code: int,
    model: Path,
    tmp_path: Path,
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The n-th write to the cache is refused, and all that follow."""
    count = 0
    write = os.write

    def refusing(handle: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count > number:
            raise OSError(code, os.strerror(code))
        return write(handle, bytes(data[: max(1, len(data) // 2)]))  # and in parts

    monkeypatch.setattr("coexec.cache.files.os.write", refusing)
    with pytest.warns(CacheWarning, match=os.strerror(code)) as said:
        assert same(answer(model, tmp_path / "c"), expected)
    assert len(said) == 1
    monkeypatch.undo()
    assert same(answer(model, tmp_path / "c"), expected)


def test_nothing_can_be_written_at_all(
    model: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coexec.cache.files.tempfile.tempdir", "/proc/none")
    monkeypatch.setattr("coexec.cache.files.MEMORY", Path("/proc/none"))
    with pytest.warns(CacheWarning, match="cannot be written"):
        assert same(answer(model, Path("/proc/coexec")), expected)


@pytest.mark.parametrize(
    "kind", ["models", "lowered", "plans", "sources", "weights", "weights/*", "drafts"]
)
def test_a_file_in_the_place_of_a_folder(
    kind: str, model: Path, copy: Path, expected: list[Any]
) -> None:
    shutil.rmtree(copy / "plans")
    for folder in list(copy.glob(kind)) or [copy / kind]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.write_text("in the way")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        for _ in range(2):
            assert same(answer(model, copy), expected)


def test_a_folder_in_the_place_of_a_file(model: Path, copy: Path, expected: list[Any]) -> None:
    for file in [*copy.glob("*/*"), *copy.glob("weights/*/*"), *copy.glob("profiles*")]:
        if file.is_file():
            file.unlink()
            file.mkdir()
    with pytest.warns(CacheWarning):
        assert same(answer(model, copy), expected)
    assert same(answer(model, copy), expected)


CHILD = """
import sys, coexec
model, devices, cache = sys.argv[1:]
coexec.InferenceSession(model, devices=devices, planner="heft", cache=cache).close()
"""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
def test_a_kill_leaves_nothing_behind(
    seed: int, model: Path, tmp_path: Path, expected: list[Any]
) -> None:
    cache = tmp_path / "c"
    words = [sys.executable, "-c", CHILD, str(model), ",".join(DEVICES), str(cache)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE)
    while not cache.is_dir() and child.poll() is None:
        time.sleep(0.001)
    time.sleep(random.Random(seed).uniform(0, 0.6))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert same(answer(model, cache), expected)
    Cache(cache)
    assert not list(cache.glob("drafts/*"))


HOLDER = """
import os, sys
from pathlib import Path
from coexec.cache.files import process_folder
folder = process_folder(Path(sys.argv[1]))
if "forked" in sys.argv and os.fork():
    sys.exit()
print(folder, flush=True)
sys.stdin.readline()
if "killed" in sys.argv:
    os.kill(os.getpid(), 9)
"""


def hold(place: Path, *how: str) -> "tuple[subprocess.Popen[str], Path]":
    """A process that uses a folder in ``place`` until it reads a line, and the folder."""
    words = [sys.executable, "-c", HOLDER, str(place), *how]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def age(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (0, 0))


@pytest.mark.parametrize("how", [(), ("killed",), ("forked",), ("forked", "killed")])
def test_a_folder_in_use_stays_however_old_it_is(how: tuple[str, ...], tmp_path: Path) -> None:
    """Also one that only a forked child still uses; neither processes nor hosts are compared."""
    child, folder = hold(tmp_path, *how)
    lock = folder.with_name(f"{folder.name}.lock")
    age(folder, lock)
    sweep(tmp_path)
    assert folder.is_dir() and lock.is_file()
    child.communicate("\n")
    assert folder.exists() == ("killed" in how)
    end_s = time.monotonic() + 10  # a forked child is not waited for
    while list(tmp_path.iterdir()) and time.monotonic() < end_s:
        sweep(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_is_swept(has_locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = Cache(tmp_path)._disk.drafts
    drafts.mkdir()
    here, there, past = files._prefix(), "coexec-01234567-", "01234567-"
    for count, prefix in enumerate((here, there, past)):
        for name in (f"{prefix}{count:032x}", f"{prefix}{count + 10:032x}"):
            (drafts / name).mkdir()
            (drafts / f"{name}.lock").touch()
        age(drafts / f"{name}.lock")
        (drafts / f"{prefix}{count + 20:032x}").touch()
    others = "coexec-a-12-b", "notes", f"{there}1", f"{here}{5:032x}"
    for name in others:
        (drafts / name).mkdir()
        age(drafts / name)
    if not has_locks:
        refused = OSError(errno.ENOLCK, "no locks here")
        monkeypatch.setattr(files.fcntl, "flock", lambda *_: (_ for _ in ()).throw(refused))
    Cache(tmp_path)
    young = [
        (there, 1),
        (there, 21),
        (past, 2),
        (past, 22),
        *([] if has_locks else [(here, 0), (here, 20)]),
    ]
    left = {path.name.removesuffix(".lock") for path in drafts.iterdir()}
    assert left == {*others, *(f"{prefix}{count:032x}" for prefix, count in young)}
    assert Cache(tmp_path).add("plans", "a", Entry({"x": b"1"}))
    if not has_locks:
        with pytest.raises(OSError, match="no locks here"), private_folder(drafts):
            pass


def test_a_draft_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, []

    def late(handle: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not swept:
            swept.append(sweep(tmp_path))
        lock(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    with private_folder(tmp_path) as folder:
        assert folder.is_dir() and len(list(tmp_path.iterdir())) == 2 and swept
    assert not list(tmp_path.iterdir())


def test_weights_and_their_entry_are_in_one_folder(tmp_path: Path) -> None:
    arrays = [np.full(size, 7, np.uint8) for size in (30_000, 40_000, 20_000)]
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
        cache = Cache(tmp_path)
        with pytest.warns(CacheWarning, match="No space left"):
            names = cache.weights.add(arrays)
        assert names is not None and cache.add("plans", "a", Entry({"x": b"1"}, tuple(names)))
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
        assert cache.add("plans", "b", Entry({"x": b"1"})) and list(tmp_path.glob("plans/*"))
        assert [cache.weights.fetch(names)[name].nbytes for name in names] == [
            30_000,
            40_000,
            20_000,
        ]
        assert cache.find("plans", "a") is not None


def test_what_replaces_a_cache_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SUBSTITUTE_BYTES", 10_000)
    root = tmp_path / "c"
    root.write_text("in the way")
    cache = Cache(root)
    with pytest.warns(CacheWarning):
        added = [cache.add("plans", str(key), Entry({"x": bytes(3000)})) for key in range(5)]
    assert added == [True, True, True, False, False]
    assert cache.weights.add([np.ones(9000, np.uint8)]) is None
    assert cache.find("plans", "2") and not cache.find("plans", "3")


@pytest.mark.long
def test_several_processes_fill_one_cache(model: Path, tmp_path: Path, expected: list[Any]) -> None:
    cache = tmp_path / "c"
    words = [sys.executable, "-W", "error", "-c", CHILD, str(model), ",".join(DEVICES), str(cache)]
    children = [subprocess.Popen(words) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert same(answer(model, cache), expected)
    Cache(cache)
    assert not list(cache.glob("drafts/*"))


UNWRITABLE = """
import sys, warnings
from pathlib import Path
import numpy as np
from coexec.cache import Cache, Entry, has_substitute
from coexec.profiling.store import Measurement, ProfileStore
root = Path(sys.argv[1])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    first = Cache(root)
    assert first.add("kernels", "a", Entry({"x": b"1"}))
    names = first.weights.add([np.arange(5000)])
    with ProfileStore(root) as store:
        store.write("d", {"s": Measurement(1.0, 0.0, 3)})
assert len(said) == 1 and "the next process" in str(said[0].message), said
second = Cache(root)
assert second.has("kernels", "a") and second.find("kernels", "a").files == {"x": b"1"}
assert second.weights.fetch(names)[names[0]].nbytes == 40000
with ProfileStore(root) as store:
    assert store.read("d") == {"s": Measurement(1.0, 0.0, 3)}
print(has_substitute(root))
assert has_substitute(root).is_dir()
"""


def test_what_cannot_be_stored_lasts_as_long_as_the_process(tmp_path: Path) -> None:
    """One warning, nothing made twice, and nothing left behind."""
    root = tmp_path / "c"
    root.write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-c", UNWRITABLE, str(root)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()


SUBSTITUTE = """
import os, signal, sys
from pathlib import Path
from coexec.cache import substitute
print(substitute(Path("/nowhere")), flush=True)
if sys.argv[1:]:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    def folder(*words: str) -> Path:
        done = subprocess.run(
            [sys.executable, "-c", SUBSTITUTE, *words],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        return Path(done.stdout.strip())

    left = folder("killed")
    assert left.is_dir() and tmp_path in left.parents
    assert not folder().exists() and not left.exists()


def test_a_warm_store_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    """What was measured before counts beside what this process adds."""
    from coexec.profiling.store import Measurement, ProfileStore

    known, more = {"a": Measurement(1.0, 0.0, 3)}, {"b": Measurement(2.0, 0.0, 3)}
    with mounted(tmp_path, "-t", "tmpfs", "tmpfs"):
        with ProfileStore(tmp_path) as store:
            store.write("d", known)
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with ProfileStore(tmp_path) as store, pytest.warns(CacheWarning, match="cannot be used"):
            store.write("d", more)
        with ProfileStore(tmp_path) as store:
            assert store.read("d") == known | more
