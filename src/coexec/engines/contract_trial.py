"""The trial of an engine on a processor: compute a small model and compare the results.

A driver or an engine may fail to compile, compute wrong numbers, hang or crash. So a trial runs in
a separate process with a time limit. The verdict is stored in the user's cache folder together with
the facts on which it depends. When one of the facts changes, the processor is tried again.

    python -m coexec.engines.contract_trial ENGINE DEVICE    # trial of an engine's whole contract
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
"""Version of the trial, increased when the trial changes. Verdicts of older versions are void."""
_LIMIT_S = 60
_FAILURE_LASTS_S = 24 * 3600.0
"""Age of a failure after which the trial is repeated."""
_PASSED, _FAILED = 77, 78
"""Exit codes of a trial that came to its end. Drivers that give up end a process with 0 or 1."""
_SIZE = 8
"""Rows and columns of the matrices that a trial multiplies."""
_lock = threading.Lock()
_verdicts: dict[Path, str] = {}
"""Failures by path of the verdict's file; "" if the trial passed."""


def verdict(
    facts: Mapping[str, object], command: Sequence[str], here: Callable[[], str], **env: str
) -> str:
    """The failure of the latest trial, as "failed ...", "crashed ..."; "" if it passed.

    Args:
        facts: the facts on which the verdict depends, in types that JSON has.
        command: runs the trial, which has to end with `end`.
        here: runs the trial in this process, if no other process can be started.
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
    """Delete all verdicts, so that each engine is tried again before its next use."""
    with _lock:
        _verdicts.clear()
        for path in _folder().glob("*.json"):
            with contextlib.suppress(OSError):
                path.unlink()


def unusable(engine: str, device: str, version: str) -> str | None:
    """The reason why an engine must not be used, and the remedy; None if it works.

    Args:
        device: name with the engine, "cpu:0/NAME". The trial computes a small model there.
        version: of the engine and its package. The trial is repeated when it changes.
    """
    command = processes.command("coexec.engines.contract_trial", engine, device)
    facts = {"engine": engine, "device": device, "version": version}
    failure = verdict(facts, command, lambda: _compute(device))
    if not failure:
        return None
    return (
        f"engine {engine} is unusable on {device.partition('/')[0]}: a small model {failure} "
        f"[{version}]; update or reinstall its package, after which coexec devices --fresh "
        f"tries it again, or leave the engine out"
    )


def _folder() -> Path:
    return platformdirs.user_cache_path("coexec") / "trials"


def _memo(facts: Mapping[str, object]) -> Path:
    """The file of the verdict."""
    return _folder() / f"{digest(sorted(facts.items()))}.json"


def _read(path: Path, facts: Mapping[str, object]) -> str | None:
    """The stored failure; "" if the trial passed; None if no valid verdict is stored."""
    try:
        data = json.loads(path.read_text())
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("facts") != facts:
        return None
    failure = data.get("failure")
    # A failure may be temporary: another process used the device, or a driver was half installed.
    forgotten = failure and not 0 <= age_s < _FAILURE_LASTS_S
    return failure if isinstance(failure, str) and not forgotten else None


def _write(path: Path, facts: Mapping[str, object], failure: str) -> None:
    """Store a verdict. If the file cannot be written, each process repeats the trial."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"failure": failure, "facts": dict(facts)}, indent=1)
        write_whole(path, [text.encode()])


def _tried(command: Sequence[str], here: Callable[[], str], env: Mapping[str, str]) -> str:
    """Run the trial. Returns the failure as the end of a sentence; "" if the trial passed."""
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
    with tempfile.TemporaryFile() as output:  # processes of the driver may keep a pipe open
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=processes.variables(**env),
            timeout=_LIMIT_S,
            check=False,
        )
        output.seek(0)
        return done.returncode, output.read().decode(errors="replace")


def _judged(code: int, output: str) -> str:
    """The failure that exit code and output of the trial's process stand for; "" if it passed."""
    if code == _PASSED:
        return ""
    if code < 0:
        return f"crashed its process ({signal.strsignal(-code) or f'signal {-code}'})"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    message = lines[-1][:300] if lines else "no message"
    return message if code == _FAILED else f"ended its process with exit code {code} ({message})"


def end(trial: Callable[[], str]) -> None:
    """Run the trial in its own process and end the process, at the latest after the time limit.

    The limit holds even if the parent process is gone, and if the driver keeps the interpreter's
    lock.
    """
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    failure = trial()
    if failure:
        print(failure)
    sys.stdout.flush()
    # No clean-up: a driver that crashes only during clean-up has computed correctly.
    os._exit(_FAILED if failure else _PASSED)


def _compute(device: str) -> str:
    """Run a small model through the whole contract of an engine, in this process.

    Returns the failure; "" if the numbers are right.
    """
    from coexec.engines.registry import open_untried
    from coexec.lowering.synthetic import products

    module = products(range(2), _SIZE)
    x = np.linspace(-1, 1, _SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
    expected = (x @ x) @ (x @ x)
    try:
        engine = open_untried(device)
        output = engine.allocate(module.outputs[0])
        bound = engine.compile(module).bind({"v0": engine.upload(x)}, {"v2": output})
        for _ in range(2):
            bound.run()
        result = np.array(engine.download(output))
        engine.close()
    except Exception as error:  # engines of other packages may raise any exception
        return f"failed ({type(error).__name__}: {first_line(error)})"
    if result.shape != expected.shape or not np.allclose(result, expected, rtol=1e-4, atol=1e-4):
        return f"gave wrong numbers ({result.ravel()[:2]} for {expected.ravel()[:2]})"
    return ""


if __name__ == "__main__":
    end(lambda: _compute(sys.argv[2]))
