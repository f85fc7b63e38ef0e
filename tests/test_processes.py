"""Processes of our own: messages there and back, errors, and ends of every kind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import onnx
import pytest

from coexec.errors import CoexecError, ModelError
from coexec.processes import Child, EndedError, variables
from tests.helpers.patience import ENOUGH_S, until
from tests.helpers.small_models import branches

PROGRAM = """
    import multiprocessing, os, subprocess, sys, time
    from coexec.errors import ModelError

    def forked(parent):
        pid = os.fork()
        if not pid:
            time.sleep(3600)
        return pid

    def spawned(parent):
        pipes = [parent._questions._descriptor, parent._answers._descriptor]
        code = "import time; time.sleep(3600)"
        return subprocess.Popen([sys.executable, "-c", code], pass_fds=pipes).pid

    def serve(parent):
        print("this is no message", flush=True)
        while True:
            word, value = parent.receive()
            if word == "double":
                parent.send(2 * value)
            elif word == "raise":
                raise ModelError(value)
            elif word == "die":
                os._exit(3)
            elif word == "start":
                parent.send({"fork": forked, "spawn": spawned}[value](parent))
            elif word == "use a library that forks":
                process = multiprocessing.get_context("fork").Process(target=print)
                process.start()
                process.join()
                parent.send(process.exitcode)
            elif word == "send and die":
                parent.send(value)
                os._exit(3)
            else:
                time.sleep(value)
"""
HOLDS_PIPES = pytest.mark.parametrize("start", ["fork", "spawn"])
"""How a library starts a process that holds copies of the child's pipes."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_child_of_a_test.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "a_child_of_a_test:serve"


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
        assert child.ask(("double", 4)) == 8
        with pytest.raises(ModelError, match="it was raised"):
            child.ask(("raise", "it was raised"))
    assert not is_there(child.pid)


def test_a_process_that_has_ended_is_an_error_that_says_what_it_did(module: str) -> None:
    with Child(module, "doubles numbers") as child:
        with pytest.raises(EndedError, match="the process that doubles numbers has ended early"):
            child.ask(("die", None))
        with pytest.raises(EndedError):
            child.ask(("double", 1))
    with Child("there_is_no_such_module:serve", "does nothing") as child, pytest.raises(EndedError):
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


def test_a_receiver_has_a_limit(module: str) -> None:
    with Child(module, "sleeps") as child:
        child.send(("sleep", 3600))
        with pytest.raises(TimeoutError):
            child.receive(0.1)
        with pytest.raises(TimeoutError):
            child.wait(0.1)


@pytest.fixture(params=["pidfd", "no pidfd"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems with and without descriptors of processes."""
    if request.param == "no pidfd":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("this system has no descriptors of processes")


@pytest.mark.usefixtures("system")
@HOLDS_PIPES
def test_the_end_of_a_child_is_noticed_though_its_pipes_are_held(module: str, start: str) -> None:
    with Child(module, "starts another process") as child:
        held_by = child.ask(("start", start))
        child.send(("send and die", b"x" * 10**6))
        assert len(child.receive()) == 10**6
        with pytest.raises(EndedError):
            child.receive()
        with pytest.raises(EndedError):
            child.send(b"more than a pipe holds" * 10**5)
        assert child.wait() == 3
    until(lambda: not is_there(held_by), "the end of the process that the child has started")


@HOLDS_PIPES
def test_a_killed_child_leaves_no_process(module: str, start: str) -> None:
    with Child(module, "starts another process") as child:
        held_by = child.ask(("start", start))
        killer = threading.Timer(0.1, child.close)
        killer.start()
        with pytest.raises(EndedError):
            child.ask(("sleep", 3600))
        killer.join()
    until(lambda: not is_there(held_by), "the end of the process that the child has started")


def test_a_library_may_fork_in_a_child(module: str) -> None:
    """multiprocessing closes sys.stdin in the copied process, which takes its lock."""
    with Child(module, "uses a library") as child:
        child.send(("use a library that forks", None))
        assert child.receive(ENOUGH_S) == 0


@pytest.mark.parametrize("process", ["child", "verb"])
def test_onnx_runtime_sends_no_reports(process: str, tmp_path: Path) -> None:
    """Where it would send, it also keeps a database in the cache folder."""
    model, cache = tmp_path / "model.onnx", tmp_path / "cache"
    onnx.save(branches(), model)
    words = [sys.executable, "-c", "import sys, onnxruntime as o; o.InferenceSession(sys.argv[1])"]
    env = variables() | {"XDG_CACHE_HOME": str(cache)}
    if process == "verb":
        words = [sys.executable, "-m", "coexec", "check", "--planner", "single"]
        env = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
        env = {name: value for name, value in env.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([*words, str(model)], env=env, check=True, capture_output=True)
    assert not (cache / "Microsoft").exists()


@HOLDS_PIPES
def test_everything_ends_with_the_parent(module: str, start: str, tmp_path: Path) -> None:
    """Killed, while a process that it has forked still holds its end of the pipe."""
    code = (
        f"import os, time\n"
        f"from coexec.processes import Child\n"
        f"child = Child({module!r}, 'sleeps')\n"
        f"held_by = child.ask(('start', {start!r}))\n"
        f"child.send(('sleep', 3600))\n"
        f"copy = os.fork()\n"
        f"if copy: print(child.pid, held_by, copy, flush=True)\n"
        f"time.sleep(3600)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        *pids, copy = map(int, parent.stdout.readline().split())
        parent.send_signal(signal.SIGKILL)
        try:
            until(lambda: not any(map(is_there, pids)), "the end of child and grandchild")
        finally:
            os.kill(copy, signal.SIGKILL)
