"""Processes of our own: messages there and back, errors, and ends of every kind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from coexec.errors import CoexecError, ModelError
from coexec.processes import Child, EndedError
from tests.helpers.patience import ENOUGH_S, until

PROGRAM = """
    import os, time
    from coexec.errors import ModelError
    from coexec.processes import Parent

    parent = Parent()
    print("this is no message", flush=True)
    while True:
        word, value = parent.receive()
        if word == "double":
            parent.send(2 * value)
        elif word == "fail":
            parent.send(ModelError(value))
        elif word == "die":
            os._exit(3)
        else:
            parent.end_with_it()
            time.sleep(value)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_child_of_a_test.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "a_child_of_a_test"


def is_there(pid: int) -> bool:
    """Whether a process runs; not if it only waits for its parent to take note of its end."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it has just ended, or this system lists no processes
        return not Path("/proc/self/stat").exists()
    return state != "Z"


def test_messages_are_answered_one_by_one(module: str) -> None:
    with Child(module, "doubles") as child:
        assert [child.ask(("double", value)) for value in (1, [2], "x")] == [2, [2, 2], "xx"]
        with pytest.raises(ModelError, match="is no model"):
            child.ask(("fail", "this is no model"))
        assert child.ask(("double", 4)) == 8
    assert not is_there(child.pid)


def test_a_process_that_has_ended_is_an_error_that_says_what_it_did(module: str) -> None:
    with Child(module, "doubles numbers") as child:
        with pytest.raises(EndedError, match="the process that doubles numbers has ended early"):
            child.ask(("die", None))
        with pytest.raises(EndedError):
            child.ask(("double", 1))
    with Child("there_is_no_such_module", "does nothing") as child, pytest.raises(EndedError):
        child.receive()


def test_what_cannot_be_sent_is_an_error(module: str) -> None:
    with Child(module, "doubles") as child, pytest.raises(CoexecError, match="could not be told"):
        child.send(lambda: None)


def test_a_receiver_is_released_by_another_thread(module: str) -> None:
    with Child(module, "sleeps") as child:
        child.send(("sleep", 3600))
        killer = threading.Timer(0.1, child.kill)
        killer.start()
        with pytest.raises(EndedError):
            child.receive()
        killer.join()


def test_a_close_with_patience_lets_the_process_end_by_itself(module: str) -> None:
    child = Child(module, "doubles")
    assert child.ask(("double", 1)) == 2
    child.close(ENOUGH_S)
    assert not is_there(child.pid)


@pytest.mark.skipif(sys.platform == "win32", reason="signals end processes otherwise there")
def test_a_process_ends_with_its_parent(module: str, tmp_path: Path) -> None:
    code = (
        f"from coexec.processes import Child; import time; child = Child({module!r}, 'sleeps'); "
        f"child.send(('sleep', 3600)); print(child.pid, flush=True); time.sleep(3600)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    until(lambda: not is_there(pid), "the end of the child")
