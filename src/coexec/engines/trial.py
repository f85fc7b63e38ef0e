"""Whether an engine works on a processor: something small is computed there, its numbers compared.

A driver or an engine may be unable to compile, compute wrong numbers, hang or crash. So a trial
runs in a process of its own with a time limit. The verdict is kept in the user's cache folder for
all that it depends on; when something of it changes, the processor is tried again.

    python -m coexec.engines.trial ENGINE DEVICE        # the trial of an engine's whole contract
"""

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import platformdirs

from coexec import processes
from coexec.cache import write_whole
from coexec.engines import detect
from coexec.errors import first_line
from coexec.keys import digest

__all__ = ["end", "forget", "unusable", "verdict"]

_FORM = 2
"""Raised when the trial changes: verdicts of an older one do not count."""
_LIMIT_S = 60
_FAILURE_LASTS_S = 24 * 3600.0
"""After that, what failed is tried again."""
_PASSED, _FAILED = 77, 78
"""Exit codes of a trial that came to its end. Drivers that give up end a process with 0 or 1."""
_SIZE = 8
"""Of the matrices that a trial multiplies."""
_lock = threading.Lock()
_verdicts: dict[Path, str] = {}
"""By the memo's path, what was wrong; "" if nothing was."""


def verdict(
    facts: Mapping[str, object], command: Sequence[str], here: Callable[[], str], **env: str
) -> str:
    """What was wrong when this was last tried, as "failed ...", "crashed ..."; "" if it works.

    Args:
        facts: all that the verdict depends on, as JSON can hold it.
        command: runs the trial, which is to end with `end`.
        here: does the same in this process, where no other can be started.
        env: further environment variables of the trial.
    """
    facts = {"form": _FORM, "features": list(detect.features()), **facts}
    path = _memo(facts)
    with _lock:  # threads that open the same device try it once
        if path not in _verdicts:
            failure = _read(path, facts)
            if failure is None:
                failure = _tried(command, here, env)
                _write(path, facts, failure)
            _verdicts[path] = failure
        return _verdicts[path]


def forget() -> None:
    """Forget all verdicts: whatever is asked for next is tried again."""
    with _lock:
        _verdicts.clear()
        for path in _folder().glob("*.json"):
            with contextlib.suppress(OSError):
                path.unlink()


def unusable(engine: str, device: str, version: str) -> str | None:
    """Why an engine must not be used, and what to do about it. None: it works.

    Args:
        device: with the engine, "cpu:0/NAME"; one where it is to compute a small model.
        version: of the engine and its package: it is tried again when that changes.
    """
    command = processes.command("coexec.engines.trial", engine, device)
    facts = {"engine": engine, "device": device, "version": version}
    failure = verdict(facts, command, lambda: _compute(device))
    if not failure:
        return None
    return (f"engine {engine} is unusable on {device.partition('/')[0]}: a small model {failure} "
            f"[{version}]; update or reinstall its package, after which coexec devices --fresh "
            f"tries it again, or leave the engine out")  # fmt: skip


def _folder() -> Path:
    return platformdirs.user_cache_path("coexec") / "trials"


def _memo(facts: Mapping[str, object]) -> Path:
    """The file of the verdict."""
    return _folder() / f"{digest(sorted(facts.items()))}.json"


def _read(path: Path, facts: Mapping[str, object]) -> str | None:
    """The remembered failure, "" for what works, None if nothing is remembered."""
    try:
        data = json.loads(path.read_text())
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("facts") != facts:
        return None
    failure = data.get("failure")
    # Another process may have held the device, or a driver been half installed.
    forgotten = failure and not 0 <= age_s < _FAILURE_LASTS_S
    return failure if isinstance(failure, str) and not forgotten else None


def _write(path: Path, facts: Mapping[str, object], failure: str) -> None:
    """Remember a verdict where that is possible; elsewhere each process makes the trial."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"failure": failure, "facts": dict(facts)}, indent=1)
        write_whole(path, [text.encode()])


def _tried(command: Sequence[str], here: Callable[[], str], env: Mapping[str, str]) -> str:
    """What is wrong, as the end of a sentence; "" if nothing is."""
    if not processes.can_start():
        return here()
    try:
        return _judged(*_run(command, env))
    except subprocess.TimeoutExpired:
        return f"did not end within {_LIMIT_S} s"
    except OSError as error:
        return f"was not run, as no process could be started ({error})"


def _run(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a process that finds the same modules as this one."""
    with tempfile.TemporaryFile() as output:  # a pipe may be held open by what the driver starts
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=processes.variables(**env), timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        output.seek(0)
        return done.returncode, output.read().decode(errors="replace")


def _judged(code: int, output: str) -> str:
    """What the end of the trial's process means."""
    if code == _PASSED:
        return ""
    if code < 0:
        return f"crashed its process ({signal.strsignal(-code) or f'signal {-code}'})"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = lines[-1][:300] if lines else "no message"
    return said if code == _FAILED else f"ended its process with exit code {code} ({said})"


def end(trial: Callable[[], str]) -> None:
    """In the trial's process: make it and end the process, at the latest after the time limit.

    The limit counts even if the process that started this one is gone, and if the driver keeps
    the interpreter's lock.
    """
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    failure = trial()
    if failure:
        print(failure)
    sys.stdout.flush()
    # Without the usual clean-up: a driver that crashes there has computed what it should.
    os._exit(_FAILED if failure else _PASSED)


def _compute(device: str) -> str:
    """Run a small model through the whole contract of an engine, in this process."""
    from coexec.engines.registry import open_untried
    from coexec.frontend.synthetic import products

    module = products(range(2), _SIZE)
    x = np.linspace(-1, 1, _SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
    expected = (x @ x) @ (x @ x)
    try:
        engine = open_untried(device)
        output = engine.allocate(module.outputs[0])
        bound = engine.compile(module).bind({"v0": engine.upload(x)}, {"v2": output})
        for _ in range(2):
            bound.run()
        found = np.array(engine.download(output))
        engine.close()
    except Exception as error:  # whatever a foreign package raises is the verdict
        return f"failed ({type(error).__name__}: {first_line(error)})"
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-4, atol=1e-4):
        return f"gave wrong numbers ({found.ravel()[:2]} for {expected.ravel()[:2]})"
    return ""


if __name__ == "__main__":
    end(lambda: _compute(sys.argv[2]))
