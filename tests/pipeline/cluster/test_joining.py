"""A cluster of two nodes on this machine: who may join, what is shown, and how it ends."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import coexec
from coexec.cache.source import source_digest
from coexec.pipeline.cluster.build import build
from tests.helpers.patience import ENOUGH_S
from tests.helpers.user_processes import processes_of

pytestmark = pytest.mark.alone

Surroundings = dict[str, str]


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    """A user of their own, who has ended all that they started."""
    mine = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    yield mine
    call(mine, "stop")
    assert not processes_of(mine["XDG_STATE_HOME"])


@pytest.fixture(scope="module")
def address(surroundings: Surroundings) -> str:
    """Of a head that runs."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    words = ["start", "--name", "head", "--port", str(port), "--json"]
    code, said, errors = call(surroundings, *words)
    assert code == 0 and "may run any program" in errors
    facts = json.loads(said)
    assert Path(facts["token_file"]).stat().st_mode & 0o777 == 0o600
    return str(facts["address"])


def call(surroundings: Surroundings, *words: str, site: bool = True) -> tuple[int, str, str]:
    """`coexec cluster`: its code, what it prints, and what it says of errors.

    Without `site` the interpreter reads no .pth files.
    """
    done = subprocess.run(
        [sys.executable, *([] if site else ["-S"]), "-m", "coexec", "cluster", *words],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_wrong_token_is_refused_in_a_line(
    surroundings: Surroundings, address: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    words = ["join", address, "--name", "thief", "--token-file", str(token)]
    code, said, errors = call(surroundings, *words)
    assert (code, said) == (3, "") and errors.count("\n") == 1
    assert "does not take this token" in errors


@pytest.mark.long
def test_another_coexec_is_refused_in_a_line(
    surroundings: Surroundings, address: str, tmp_path: Path
) -> None:
    package = Path(coexec.__file__).parent
    shutil.copytree(package, tmp_path / "coexec", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "coexec" / "units.py").open("a") as file:
        file.write("# changed\n")
    # The .pth file of an editable installation finds its own coexec before PYTHONPATH does.
    other = {**surroundings, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    code, said, errors = call(other, "join", address, "--name", "other", site=False)
    assert (code, said) == (3, "") and errors.count("\n") == 1
    assert f"has coexec {build()}, this machine" in errors


@pytest.mark.long
def test_a_machine_joins_is_shown_and_ends(surroundings: Surroundings, address: str) -> None:
    assert call(surroundings, "join", address, "--name", "second")[0] == 0
    again = call(surroundings, "join", address, "--name", "second")
    assert again[0] == 2 and "runs here already" in again[2]
    facts = json.loads(call(surroundings, "status", "--json")[1])
    alive = {each["name"]: each for each in facts["machines"] if each["alive"]}
    assert set(alive) == {"head", "second"}
    assert alive["head"]["is_head"] and not alive["second"]["is_head"]
    assert alive["second"]["build"] == build() and alive["second"]["cores"] >= 1
    ports = {each["port"] for each in facts["sockets"]}
    assert int(address.rpartition(":")[2]) in ports
    assert "of the cluster at" in call(surroundings, "stop", "--name", "second")[1]
    code, said, _ = call(surroundings, "status")
    assert code == 0 and "all addresses" in said and "ufw allow from" in said
    assert "head of the cluster" in call(surroundings, "stop")[1]
    assert "no machine of this user runs here" in call(surroundings, "status")[1]


def test_a_build_is_of_the_whole_package() -> None:
    assert build().endswith(source_digest(Path(coexec.__file__).parent))
