"""Verdicts of the trials of engines and drivers.

A driver or an engine may fail to compile, compute wrong numbers, hang or crash. So a trial runs in
a separate process with a time limit. The verdict is stored in the user's cache folder together with
the facts on which it depends. When one of the facts changes, the processor is tried again.
"""

import contextlib
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from coexec import processes
from coexec.cache import write_whole
from coexec.codec import decode, encode
from coexec.engines import detect
from coexec.keys import digest

__all__ = ["end", "forget", "verdict"]

_FORM = 2
"""Version of the trial, increased when the trial changes. Verdicts of older versions are void."""
_LIMIT_S = 60
_FAILURE_LASTS_S = 24 * 3600.0
"""Age of a failure after which the trial is repeated."""
_PASSED, _FAILED = 77, 78
"""Exit codes of a trial that came to its end. Drivers that give up end a process with 0 or 1."""


@dataclass(frozen=True)
class _StoredVerdict:
    """The content of a verdict's file."""

    failure: str
    """"" if the trial passed."""
    facts: Mapping[str, Any]


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


def _folder() -> Path:
    return platformdirs.user_cache_path("coexec") / "trials"


def _memo(facts: Mapping[str, object]) -> Path:
    """The file of the verdict."""
    return _folder() / f"{digest(sorted(facts.items()))}.json"


def _read(path: Path, facts: Mapping[str, object]) -> str | None:
    """The stored failure; "" if the trial passed; None if no valid verdict is stored."""
    try:
        verdict = decode(_StoredVerdict, json.loads(path.read_text()))
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    # A failure may be temporary: another process used the device, or a driver was half installed.
    outdated = verdict.failure and not 0 <= age_s < _FAILURE_LASTS_S
    return None if outdated or verdict.facts != facts else verdict.failure


def _write(path: Path, facts: Mapping[str, object], failure: str) -> None:
    """Store a verdict. If the file cannot be written, each process repeats the trial."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(encode(_StoredVerdict(failure, facts)), indent=1)
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
        return processes.ending(code)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    message = lines[-1][:300] if lines else "no message"
    return message if code == _FAILED else f"{processes.ending(code)} ({message})"


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
