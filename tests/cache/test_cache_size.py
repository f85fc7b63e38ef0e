"""What the cache and the store of profiles keep, and for how long."""

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coexec
from coexec.cache import Cache, Entry
from coexec.cache.weights import file_of, name_of
from coexec.costs.estimated import Work
from coexec.errors import CacheWarning
from coexec.profiling.store import Measurement, ProfileStore
from tests.helpers.harmed import DEVICES, files, flip
from tests.helpers.small_models import branches

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


def test_the_store_keeps_what_was_measured_and_of_what(tmp_path: Path) -> None:
    row = Measurement(2e-3, 0.05, 7, "Conv(1x?x?x?) | Conv", Work(2**40, 2**33))
    with ProfileStore(tmp_path) as store:
        store.write("d", {"a": row} | {"link": Measurement(1.0, 0.0, 1)})
    with ProfileStore(tmp_path) as store:
        assert store.read("d") == {"a": row, "link": Measurement(1.0, 0.0, 1, "", Work(0, 0))}


def test_a_store_of_another_form_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "profiles-2.sqlite"
    other.write_bytes(b"of an older version")
    with ProfileStore(tmp_path) as store:
        store.write("d", ROW)
        assert store.read("d") == ROW and store.path != other
    assert other.read_bytes() == b"of an older version"


def test_a_changed_number_in_the_store_is_measured_again(tmp_path: Path) -> None:
    with ProfileStore(tmp_path) as store:
        store.write("d", {"a": Measurement(1.5, 0.1, 3), "b": Measurement(1.0, 0.1, 3)})
    content = store.path.read_bytes()
    place = content.index(np.array(1.5, ">f8").tobytes())
    flip(store.path, place + 1)
    with ProfileStore(tmp_path) as store:
        assert store.read("d") == {"b": Measurement(1.0, 0.1, 3)}


def test_a_locked_store_works_in_memory(tmp_path: Path) -> None:
    import sqlite3

    with ProfileStore(tmp_path, patience_s=0.05) as store:
        store.write("d", ROW)
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.warns(CacheWarning, match="locked"):
            store.write("e", ROW)
        assert store.read("d") == store.read("e") == ROW
        other.close()


def test_weights_are_stored_once(tmp_path: Path) -> None:
    """For two shapes of a model, two plans and two sets of devices."""
    size = {}
    for ways in (1, 2, 3, 4):
        proto = branches(size=20 if ways < 4 else 24)
        words = (
            {"planner": "single", "devices": DEVICES[:1]}
            if ways < 2
            else (
                {"planner": "heft", "devices": DEVICES}
                if ways != 3
                else ({"planner": "hope_greedy", "devices": DEVICES})
            )
        )
        coexec.InferenceSession(proto, cache=tmp_path, **words).close()
        size[ways] = sum(p.stat().st_size for p in tmp_path.glob("weights/*/*"))
    assert size[1] > 50_000 and size[4] < 1.2 * size[2]


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
        names = cache.weights.add([array(seed, count)])
        assert names
        cache.add("plans", str(key), Entry({"x": bytes(500)}, tuple(names)))
        own = cache.find("plans", str(key))
        assert (
            own is not None
            and (cache.weights.fetch(own.weights)[names[0]] == array(seed, count)).all()
        )
        size = sum(f.stat().st_size for k in ("plans", "weights") for f in files(root / k))
        assert size <= 10_000
        for file in (*root.glob("plans/*"), *root.glob("weights/*/*")):
            os.utime(file, (time_s, time_s))  # new weights stay for some minutes
        del cache


def test_weights_whose_entry_is_to_come_stay(tmp_path: Path) -> None:
    """Another process stores weights, or finds them, before it adds the entry."""
    old, new, found = (array(seed, 2000) for seed in range(3))
    other = Cache(tmp_path)
    other.weights.add([old, new, found])
    for file in tmp_path.glob("weights/*/*"):
        os.utime(file, (0, 0))
    names = other.weights.add([found]) or []
    os.utime(file_of(tmp_path, name_of(new)))
    del other
    own = Cache(tmp_path, limit_bytes=5000)
    own.add("plans", "own", Entry({"x": bytes(100)}))
    for file in tmp_path.glob("weights/*/*"):
        assert file.name in (name_of(new), *names)
    assert len(list(tmp_path.glob("weights/*/*"))) == 2


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
