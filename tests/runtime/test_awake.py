"""Keepers: busy during a run and at no other time, of the lowest priority, one for each core."""

import gc
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from coexec.engines.detect import usable_cores
from coexec.model.check import plain_session, worst_difference
from coexec.runtime.core_spinner import Awake
from coexec.session import InferenceSession
from tests.helpers.patience import until
from tests.helpers.small_models import branches

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no idle priority"),
    pytest.mark.skipif(len(usable_cores()) < 2, reason="this process may use one core only"),
]

CORES = usable_cores()[:2]


@pytest.fixture(autouse=True)
def _unrationed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever container the tests run in."""
    monkeypatch.setattr(Awake, "ration_files", ())


def started(count: int = len(CORES)) -> dict[int, int]:
    """So many keepers, once there are that many: a process that has just been started has no
    command line for a moment. None: if there are still none after a while."""
    if not count:
        time.sleep(0.2)
    until(lambda: len(keepers()) == count)
    return keepers()


def keepers() -> dict[int, int]:
    """The process of each core that has a keeper of this process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        if parent == os.getpid() and any(b"SCHED_IDLE" in word for word in words):
            found[int(words[words.index(b"-c") + 2])] = int(folder.name)
    return found


def used_s(process: int) -> float:
    """CPU time."""
    return time.clock_gettime((~process << 3) | 2)


def sleeps(process: int) -> bool:
    """Whether it waits, and not only for a core."""
    text = Path(f"/proc/{process}/stat").read_text()
    return text.rpartition(")")[2].split()[0] == "S"


def grows(process: int) -> bool:
    before_s = used_s(process)
    time.sleep(0.05)
    return used_s(process) > before_s


def test_cores_are_busy_between_begin_and_end() -> None:
    awake = Awake(CORES)
    awake.begin()
    found = started()
    assert set(found) == set(CORES)
    for core, process in found.items():
        until(lambda process=process: os.sched_getscheduler(process) == os.SCHED_IDLE)
        assert os.sched_getaffinity(process) == {core}
        until(lambda process=process: grows(process))
    awake.end()
    awake.end()
    for process in found.values():
        until(lambda process=process: sleeps(process))
        assert not grows(process)
    awake.begin()
    for process in found.values():
        until(lambda process=process: grows(process))
    awake.close()
    awake.close()
    until(lambda: not keepers())


def test_users_share_keepers_and_the_last_one_ends_them() -> None:
    first, second = Awake(CORES), Awake(CORES)
    found = started()
    first.begin()
    second.begin()
    first.close()
    for process in found.values():  # the second one still runs
        until(lambda process=process: grows(process))
    assert keepers() == found
    del second
    gc.collect()
    until(lambda: not keepers())


def test_a_keeper_leaves_its_core_to_others() -> None:
    """Also where it has just woken up and others have long been busy, so that it is its turn."""
    awake, allowed = Awake(CORES), os.sched_getaffinity(0)
    keeper, used_by_keeper_s, used_by_us_s = started()[CORES[0]], 0.0, 0.0
    try:
        os.sched_setaffinity(0, CORES[:1])
        until(lambda: os.sched_getscheduler(keeper) == os.SCHED_IDLE)
        for _ in range(20):
            time.sleep(0.02)
            before_s, began_s = used_s(keeper), time.thread_time()
            awake.begin()
            while time.thread_time() < began_s + 0.02:
                pass
            awake.end()
            used_by_keeper_s += used_s(keeper) - before_s
            used_by_us_s += time.thread_time() - began_s
    finally:
        os.sched_setaffinity(0, allowed)
        awake.close()
    assert used_by_keeper_s < 0.05 * used_by_us_s


def test_a_keeper_that_was_killed_is_no_error() -> None:
    """The runs go on without it. It is started again only for who comes after all its users."""
    awake = Awake(CORES)
    for process in started().values():
        os.kill(process, signal.SIGKILL)
    until(lambda: not keepers())
    for _ in range(3):
        awake.begin()
        awake.end()
    assert not started(0)
    awake.close()
    another = Awake(CORES)
    assert set(started()) == set(CORES)
    another.close()


def test_a_run_without_its_keepers_answers_right(tmp_path: Path) -> None:
    devices = [f"cpu:{core}" for core in CORES]
    pins = {f"b{branch}.*": devices[branch % 2] for branch in range(4)}
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)}
    expected = plain_session(branches(4)).run(None, feeds)
    with InferenceSession(
        branches(4),
        devices=devices,
        planner="hope_greedy",
        pins=pins,
        waiting="active",
        background=False,
        cache=tmp_path,
    ) as session:
        for process in started().values():
            os.kill(process, signal.SIGKILL)
        until(lambda: not keepers())
        for _ in range(3):
            answers = session.run(None, feeds)
            assert max(map(worst_difference, answers, expected)) < 1e-5
        assert session.degraded is None and not keepers()


def test_one_core_and_a_frozen_program_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Awake(CORES[:1]).begin()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    Awake(CORES).begin()
    assert not started(0)


@pytest.mark.parametrize(
    ("text", "count"), [("max 100000\n", 2), ("150000 100000\n", 0), ("-1\n", 2), ("150000\n", 0)]
)
def test_rationed_time_is_not_used_up(
    text: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ration").write_text(text)
    paths = (str(tmp_path / "none"), str(tmp_path / "ration"))
    monkeypatch.setattr(Awake, "ration_files", paths)
    awake = Awake(CORES)
    assert len(started(count)) == count
    awake.close()


def test_a_forked_child_has_its_own() -> None:
    awake = Awake(CORES)
    of_parent = started()
    child = os.fork()
    if child == 0:
        own = Awake(CORES)
        own.begin()
        right = set(started()) == set(CORES)
        own.close()
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert keepers() == of_parent
    awake.close()
