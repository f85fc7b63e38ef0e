"""The cache is never wrong and never an error: damage, full disks, kills, other processors."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import branches

import coexec
from coexec.cache import Cache, Entry
from coexec.devices import detect, registry
from coexec.devices.detect import usable_cores
from coexec.errors import CacheWarning
from coexec.frontend.check import worst_difference
from coexec.pipeline import Pipeline
from coexec.store import Measurement, ProfileStore

DEVICES = [f"cpu:{core}" for core in usable_cores()[:2]]
FEEDS = {"x": np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)}
ENTRIES = ("models/*", "lowered/*", "plans/*", "choices/*", "sources/*")


def answer(model: Any, cache: Path | Cache, planner: str = "heft", **words: Any) -> list[Any]:
    with coexec.InferenceSession(
        model, devices=DEVICES, planner=planner, cache=cache, **words
    ) as session:
        return session.run(None, FEEDS)


def same(found: list[Any], expected: list[Any]) -> bool:
    return all(worst_difference(a, b) < 1e-5 for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(branches(), str(path))
    return path


@pytest.fixture(scope="module")
def expected(warm: Path, model: Path) -> list[Any]:
    return answer(model, warm)


@pytest.fixture(scope="module")
def warm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm cache, with the choice of "auto" as well; not to be changed."""
    folder = tmp_path_factory.mktemp("warm")
    for planner in ("heft", "auto"):
        answer(model, folder, planner)
    return folder


@pytest.fixture
def copy(warm: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(warm, tmp_path / "cache"))


def files(cache: Path) -> list[Path]:
    return sorted(p for p in cache.rglob("*") if p.is_file())


def flip(file: Path, place: int) -> None:
    """One bit, and the times of the file as before."""
    stat = file.stat()
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << place % 8
    file.write_bytes(bytes(content))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("kind", [*ENTRIES, "weights/*/*", "profiles*"])
def test_a_flipped_bit_is_noticed(
    kind: str, model: Path, copy: Path, expected: list[Any], tmp_path: Path
) -> None:
    rng = random.Random(kind)
    if kind in ("models/*", "lowered/*"):
        shutil.rmtree(copy / "plans")  # else they are not read
    elif kind == "profiles*":
        for other in ("plans", "choices"):
            shutil.rmtree(copy / other)
    for file in rng.sample(found := sorted(copy.glob(kind)), min(4, len(found))):
        for place in rng.sample(range(file.stat().st_size), 2):
            again = Path(shutil.copytree(copy, tmp_path / "again"))
            flip(again / file.relative_to(copy), place)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CacheWarning)
                for planner in ("heft", "auto") if kind == "choices/*" else ("heft",):
                    assert same(answer(model, again, planner), expected), f"{file} at {place}"
            shutil.rmtree(again)


def test_damage_is_said_once_and_repaired(model: Path, copy: Path, expected: list[Any]) -> None:
    for file in copy.glob("weights/*/*"):
        flip(file, 100)
    with pytest.warns(CacheWarning, match=r"was damaged.*--cache DIR") as said:
        assert same(answer(model, copy), expected)
    assert len(said) == 1
    assert same(answer(model, copy), expected)


def external(path: Path, scale: float = 1.0) -> None:
    """The model with its weights in a file beside it."""
    proto = branches()
    for tensor in proto.graph.initializer:
        if tensor.name == "b0.b.w":
            values = onnx.numpy_helper.to_array(tensor) * scale
            tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float32), tensor.name))
    onnx.save(proto, str(path), save_as_external_data=True, location="w.bin", size_threshold=64)


@pytest.mark.parametrize("pause_s", [0.0, 2.1])
def test_replaced_external_weights_are_noticed(
    pause_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "m.onnx", tmp_path / "other"
    other.mkdir()
    external(path)
    external(other / "m.onnx", scale=2.0)
    monkeypatch.chdir(tmp_path)
    time.sleep(pause_s)  # the cache trusts times or reads the files again, according to their age
    first = answer(path, tmp_path / "c")
    size = (tmp_path / "w.bin").stat().st_size
    (tmp_path / "w.bin").write_bytes((other / "w.bin").read_bytes())
    assert (tmp_path / "w.bin").stat().st_size == size
    second = answer(path, tmp_path / "c")
    assert not same(second, first)
    assert same(second, answer(other / "m.onnx", tmp_path / "other-cache"))


def test_weights_that_keep_their_times_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.onnx"
    external(path)
    data = tmp_path / "w.bin"
    os.utime(data, (1e9, 1e9))
    time.sleep(2.1)
    first = answer(path, tmp_path / "c")
    content = bytearray(data.read_bytes())
    for place in range(3, len(content), 4):
        content[place] ^= 0x80
    data.write_bytes(bytes(content))
    os.utime(data, (1e9, 1e9))
    assert not same(answer(path, tmp_path / "c"), first)


def test_a_touched_or_copied_model_is_not_made_again(
    model: Path, copy: Path, expected: list[Any], tmp_path: Path
) -> None:
    before = {kind: len(list(copy.glob(kind))) for kind in ("models/*", "lowered/*", "plans/*")}
    again = tmp_path / "copied.onnx"
    shutil.copy(model, again)
    os.utime(again)
    for path in (again, model):
        assert same(answer(path, copy), expected)
    assert before == {kind: len(list(copy.glob(kind))) for kind in before}


def test_a_model_that_changes_while_it_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(branches(width=2), str(path))
    load = Pipeline._load

    def late(self: Pipeline, **how: Any) -> Any:
        shutil.copy(model, path)  # between the digest and the reader
        return load(self, **how)

    monkeypatch.setattr(Pipeline, "_load", late)
    assert same(answer(path, tmp_path / "c"), expected)
    monkeypatch.undo()
    onnx.save(branches(width=2), str(path))
    with coexec.InferenceSession(path, devices=DEVICES, planner="heft", cache=tmp_path / "c") as s:
        assert s.get_outputs()[0].shape == [1, 32]


def test_processors_with_other_features_share_no_lowered_model(
    model: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = registry.describe(DEVICES[0])
    before = {kind: len(list(copy.glob(kind))) for kind in ("lowered/*", "plans/*")}
    monkeypatch.setattr(detect, "processor_features", lambda: "12345678")
    there = registry.describe(DEVICES[0])
    assert here.key != there.key and here.features and there.features == "12345678"
    answer(model, copy)
    assert all(len(list(copy.glob(kind))) == count + 1 for kind, count in before.items())


def test_features_have_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(name: str) -> Any:
        raise ImportError(name)

    plain = detect.processor_features.__wrapped__
    assert plain() == plain() and len(plain()) == 8
    own = plain()
    monkeypatch.setattr(detect, "import_module", moved)
    assert len(plain()) == 8 and plain() != own


# ---- disks that refuse


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
        assert not list(folder.glob("drafts/*/*"))


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

    monkeypatch.setattr("coexec.cache.drafts.os.write", refusing)
    with pytest.warns(CacheWarning, match=os.strerror(code)) as said:
        assert same(answer(model, tmp_path / "c"), expected)
    assert len(said) == 1
    monkeypatch.undo()
    assert same(answer(model, tmp_path / "c"), expected)


def test_nothing_can_be_written_at_all(
    model: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coexec.cache.scratch.tempfile.tempdir", "/proc/none")
    monkeypatch.setattr("coexec.cache.scratch._MEMORY", Path("/proc/none"))
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


# ---- the store of profiles

ROW = {"a": Measurement(1.0, 0.1, 3)}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(b"no database" * 100),
        lambda file: file.write_bytes(file.read_bytes()[:5000]),
        lambda file: flip(file, 30),
        lambda file: flip(file, file.read_bytes().index(b"CREATE TABLE measurement") + 14),
    ],
)
def test_a_damaged_store_is_replaced(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    with ProfileStore(tmp_path) as store:
        store.write("d", ROW)
    spoil(store.path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        with ProfileStore(tmp_path) as store:
            assert store.read("d") in ({}, ROW)
            store.write("e", ROW)
        with ProfileStore(tmp_path) as store:
            assert store.read("e") == ROW


def test_a_changed_number_in_the_store_is_measured_again(tmp_path: Path) -> None:
    with ProfileStore(tmp_path) as store:
        store.write("d", {"a": Measurement(1.5, 0.1, 3), "b": Measurement(1.0, 0.1, 3)})
    content = store.path.read_bytes()
    place = content.index(np.array(1.5, ">f8").tobytes())
    flip(store.path, place + 1)
    with ProfileStore(tmp_path) as store:
        assert store.read("d") == {"b": Measurement(1.0, 0.1, 3)}


def test_a_locked_store_works_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    monkeypatch.setattr("coexec.store._PATIENCE_S", 0.05)
    with ProfileStore(tmp_path) as store:
        store.write("d", ROW)
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.warns(CacheWarning, match="locked"):
            store.write("e", ROW)
        assert store.read("d") == store.read("e") == ROW
        other.close()


# ---- kills

CHILD = """
import sys, coexec
model, devices, cache = sys.argv[1:]
coexec.InferenceSession(model, devices=devices, planner="heft", cache=cache).close()
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_kill_leaves_nothing_behind(
    seed: int, model: Path, tmp_path: Path, expected: list[Any]
) -> None:
    cache = tmp_path / "c"
    words = [sys.executable, "-c", CHILD, str(model), ",".join(DEVICES), str(cache)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE)
    while not list(cache.glob("drafts/*")) and child.poll() is None:
        time.sleep(0.001)
    time.sleep(random.Random(seed).uniform(0, 0.6))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert same(answer(model, cache), expected)
    Cache(cache)
    assert not list(cache.glob("drafts/*"))


def test_drafts_in_use_stay(tmp_path: Path) -> None:
    first, second = Cache(tmp_path), Cache(tmp_path)
    first.add("plans", "a", Entry({"x": b"1"}))
    drafts = set(tmp_path.glob("drafts/*"))
    assert len(drafts) == 2  # a folder and its lock
    second.add("plans", "b", Entry({"x": b"2"}))
    assert drafts < set(tmp_path.glob("drafts/*"))
    del first, second
    assert not list(tmp_path.glob("drafts/*"))


@pytest.mark.parametrize(("age_s", "left"), [(0, 2), (100000, 0)])
def test_drafts_of_other_hosts_and_without_locks_go_by_age(
    age_s: float, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    folder = tmp_path / "drafts"
    (folder / "elsewhere-1").mkdir(parents=True)
    lock = folder / "elsewhere-1.lock"
    lock.touch()
    os.utime(lock, (time.time() - age_s,) * 2)
    for _ in range(2):
        Cache(tmp_path)
        assert len(list(folder.iterdir())) == left
        monkeypatch.setattr(fcntl, "flock", refused)
    assert Cache(tmp_path).add("plans", "a", Entry({"x": b"1"}))


# ---- size


def test_weights_are_stored_once(tmp_path: Path) -> None:
    """For two shapes of a model, two plans and two sets of devices."""
    size = {}
    for ways in (1, 2, 3, 4):
        proto = branches(size=20 if ways < 4 else 24)
        words = {"planner": "single", "devices": DEVICES[:1]} if ways < 2 else (
            {"planner": "heft", "devices": DEVICES} if ways != 3 else (
                {"planner": "hope_greedy", "devices": DEVICES}))  # fmt: skip
        coexec.InferenceSession(proto, cache=tmp_path, **words).close()
        size[ways] = sum(p.stat().st_size for p in tmp_path.glob("weights/*/*"))
    assert size[1] > 50_000 and size[4] < 1.2 * size[1]


def array(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).integers(0, 255, count, np.uint8)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1024, 4000), st.integers(0, 3)), max_size=25
    )
)
def test_the_cache_keeps_its_limit(
    rows: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("limit")
    for time_s, (seed, count, key) in enumerate(rows):
        cache = Cache(root, limit_bytes=10_000)
        names = cache.add_weights([array(seed, count)])
        assert names
        cache.add("plans", str(key), Entry({"x": bytes(500)}, tuple(names)))
        own = cache.find("plans", str(key))
        assert (
            own is not None
            and (cache.weights.fetch(own.weights)[names[0]] == array(seed, count)).all()
        )
        size = sum(f.stat().st_size for k in ("plans", "weights") for f in files(root / k))
        assert size <= 10_000
        for file in root.glob("plans/*"):
            os.utime(file, (time_s, time_s))
        del cache


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    for key in range(8):
        cache = Cache(tmp_path, limit_bytes=10_000)
        cache.add("plans", "first", Entry({"x": bytes(1500)})) if key == 0 else None
        assert cache.find("plans", "first"), key
        cache.add("plans", str(key), Entry({"x": bytes(1500)}))
        time.sleep(0.01)
        del cache
    assert Cache(tmp_path).find("plans", "7") and not Cache(tmp_path).find("plans", "0")


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    mine = [tmp_path / "plans" / "notes.txt", tmp_path / "thesis.tex"]
    for file in mine:
        file.write_bytes(bytes(20_000))
    cache = Cache(tmp_path, limit_bytes=1000)
    for key in range(4):
        cache.add("plans", str(key), Entry({"x": bytes(800)}))
    assert all(file.exists() for file in mine)
