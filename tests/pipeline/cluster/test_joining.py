"""Machines join a cluster by `ray start`, are shown, and end."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import coexec
from coexec.cache.source import source_digest
from coexec.pipeline.cluster.build import build
from tests.helpers.patience import ENOUGH_S
from tests.helpers.user_processes import processes_of

pytestmark = pytest.mark.alone

ISOLATED = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
"""`ray stop` ends all processes of Ray that it sees, and here it sees those of the test alone."""
MACHINES = """
set -e
coexec() { PYTHON -m coexec cluster "$@"; }
coexec start --name head --port PORT
address=$(coexec status --json | grep -o '[0-9.]*:PORT' | head -1)
coexec join $address --name second
coexec join $address --name second && exit 1
coexec status
PYTHON -m ray.scripts.scripts stop
coexec status && exit 1
echo ended
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A user of their own; afterwards no process of theirs runs."""
    mine = {**os.environ, "HOME": str(tmp_path)}
    yield mine
    assert not processes_of(mine["HOME"])


def free_port() -> str:
    with socket.create_server(("", 0)) as free:
        return str(free.getsockname()[1])


def call(surroundings: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "coexec", "cluster", *words]
    return subprocess.run(
        command, env=surroundings, capture_output=True, text=True, timeout=ENOUGH_S, check=False
    )


def test_a_head_that_blocks_ends_with_its_command_and_takes_no_wrong_token(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    words = ["start", "--name", "head", "--port", port, "--host", "127.0.0.1", "--block"]
    command = [sys.executable, "-m", "coexec", "cluster", *words]
    with subprocess.Popen(command, env=surroundings, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        started = next(line for line in head.stdout if "ray start --address=" in line)
        address = started.split("'")[1]
        assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
        token = tmp_path / "token"
        token.write_text("0" * 64)
        done = call(surroundings, "join", address, "--name", "thief", "--token-file", str(token))
        assert (done.returncode, done.stdout) == (3, "")
        assert "does not take this token" in done.stderr
        without = {**surroundings, "RAY_AUTH_MODE": "disabled"}
        listed = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address],
            env=without, capture_output=True, text=True, timeout=ENOUGH_S, check=False,
        )  # fmt: skip
        assert listed.returncode and "InvalidAuthToken" in listed.stderr
        head.terminate()
    end_s = time.monotonic() + ENOUGH_S
    while processes_of(surroundings["HOME"]) and time.monotonic() < end_s:
        time.sleep(0.1)  # the workers of a node end after it


@pytest.mark.long
@pytest.mark.system
@pytest.mark.skipif(
    subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not make a namespace of processes: unshare --pid",
)
def test_machines_join_are_shown_and_end_by_ray(surroundings: dict[str, str]) -> None:
    script = MACHINES.replace("PYTHON", sys.executable).replace("PORT", free_port())
    done = subprocess.run(
        [*ISOLATED, "bash", "-c", script],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ENOUGH_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "may run any program" in done.stdout
    assert "has a machine 'second' already" in done.stdout
    assert done.stdout.endswith("ended\n")
    rows = [line.split() for line in done.stdout.splitlines() if build() in line]
    shown = {row[0]: row[2] for row in rows if len(row) == 5}
    assert shown == {"head": "head", "second": "there"}


def test_a_build_is_of_the_whole_package() -> None:
    assert build().endswith(source_digest(Path(coexec.__file__).parent))
