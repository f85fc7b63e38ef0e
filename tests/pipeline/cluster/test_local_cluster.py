"""Four nodes on this machine by one command: right answers, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.patience import ENOUGH_S
from tests.helpers.user_processes import processes_of

pytestmark = pytest.mark.alone

FRAMES = 20


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A user of their own; afterwards no process of theirs runs."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    mine = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": cache, "TMPDIR": "/tmp"}
    yield mine
    assert not processes_of(mine["HOME"])


def _folder_of(machine: str) -> Path:
    """Where Ray has its sockets, of a machine that was started for the time being."""
    return Path("/tmp") / machine.rpartition("-")[0]


def _folders() -> set[Path]:
    """Folders of nodes that were started for the time being."""
    return {log.parent for log in Path("/tmp").glob("coexec-*/coexec-*-0.log")}


@contextmanager
def _started(surroundings: dict[str, str], *words: str) -> "Iterator[subprocess.Popen[str]]":
    """The command; ended as its user would, if the test has not."""
    with subprocess.Popen(
        [sys.executable, "-m", "coexec", "cluster", "run", "zoo:squeezenet", *words],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            yield run
        finally:
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=ENOUGH_S)


@pytest.mark.long
def test_a_run_on_four_nodes_answers_as_onnx_runtime_does(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    words = ["--nodes", "4", "--frames", str(FRAMES), "--check", "--json", "--trace", str(trace)]
    with _started(surroundings, *words) as run:
        said, errors = run.communicate(timeout=ENOUGH_S)
    assert run.returncode == 0, errors
    facts = json.loads(said)
    assert facts["frames"] == FRAMES and max(facts["differences"].values()) < 1e-4
    assert len(facts["machines"]) == 4
    assert not any(_folder_of(name).exists() for name in facts["machines"])
    assert facts["most_inside"] <= max(facts["credits"], 1 + 2 * facts["stages"])
    events = json.loads(trace.read_text())["traceEvents"]
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes[0] == "frames" and len(processes) == 5
    answered = {event["id"] for event in events if event["ph"] == "e" and event["cat"] == "frame"}
    assert answered == set(range(FRAMES))


@pytest.mark.long
def test_signals_end_all_that_was_started(surroundings: dict[str, str]) -> None:
    before = _folders()
    with _started(surroundings, "--nodes", "2", "--frames", "100000") as run:
        assert run.stderr is not None
        assert any("of 100000 frames answered" in line for line in run.stderr)
        [folder] = _folders() - before
        for _ in range(
            400
        ):  # also while Ray is being left, whose own handler would end the process
            run.send_signal(signal.SIGTERM)
            time.sleep(0.002)
        said, errors = run.communicate(timeout=ENOUGH_S)
    assert run.returncode == 130 and not said
    assert errors.endswith("coexec: interrupted; what was started for it has been ended\n")
    assert not folder.exists()
