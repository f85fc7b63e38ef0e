"""The trial of an engine or a driver: something small is computed and compared.

A driver or an engine may fail to compile, compute wrong numbers, hang or crash. So a trial runs in
a separate process with a time limit. The verdict is stored in the user's cache folder together with
the facts on which it depends. When one of the facts changes, the trial is repeated.
"""

import contextlib
import faulthandler
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import platformdirs

from coexec import processes
from coexec.cache import write_whole
from coexec.codec import decode, encode
from coexec.engines import detect
from coexec.errors import CoexecError, ExecutionError, first_line
from coexec.keys import digest

_FORM = 3
"""Version of the trials, increased when one of them changes. Verdicts of older versions are
void."""
_LIMIT_S = 60
FAILURE_LASTS_S = 24 * 3600.0
"""Age of a failure after which the trial is repeated."""


@dataclass(frozen=True)
class _StoredVerdict:
    """The content of a verdict's file."""

    failure: str
    """"" if the trial passed."""
    facts: Mapping[str, Any]


_lock = threading.Lock()
_verdicts: dict[Path, str] = {}
"""Failures by path of the verdict's file; "" if the trial passed."""


def failure(attempt: str, *arguments: object, facts: Mapping[str, object]) -> str:
    """The failure of the latest trial, as "failed ...", "crashed ..."; "" if it passed.

    Args:
        attempt: the function that computes, as "module:function"; it returns the failure or "".
        arguments: its arguments.
        facts: the facts on which the verdict depends, in types that JSON has.
    """
    return answer(attempt, arguments, facts, lambda _: FAILURE_LASTS_S)


def answer(
    attempt: str,
    arguments: tuple[object, ...],
    facts: Mapping[str, object],
    lasts_s: Callable[[str], float],
) -> str:
    """The text that a function has returned in a process of its own; or how the process has ended,
    as `failure` does.

    A text other than "" expires: a later process asks for it again.

    Args:
        lasts_s: how long a text is kept.
        attempt, arguments, facts: as for `failure`.
    """
    facts = {"form": _FORM, "features": list(detect.features()), **facts}
    path = _folder() / f"{digest(sorted(facts.items()))}.json"
    with _lock:  # threads that open the same device try it once
        if path not in _verdicts:
            result = _read(path, facts, lasts_s)
            if result is None:
                result = _tried(attempt, arguments)
                _write(path, facts, result)
            _verdicts[path] = result
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


def _read(path: Path, facts: Mapping[str, object], lasts_s: Callable[[str], float]) -> str | None:
    """The stored failure; "" if the trial passed; None if no valid verdict is stored."""
    try:
        verdict = decode(_StoredVerdict, json.loads(path.read_text()))
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    # A failure may be temporary: another process used the device, or a driver was half installed.
    outdated = verdict.failure and not 0 <= age_s < lasts_s(verdict.failure)
    return None if outdated or verdict.facts != facts else verdict.failure


def _write(path: Path, facts: Mapping[str, object], result: str) -> None:
    """Store a verdict. If the file cannot be written, each process repeats the trial."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(encode(_StoredVerdict(result, facts)), indent=1)
        write_whole(path, [text.encode()])


def _tried(attempt: str, arguments: tuple[object, ...]) -> str:
    """Run the trial. Returns the failure as the end of a sentence; "" if the trial passed."""
    if not processes.can_start():
        return _attempted(attempt, arguments)
    # The output is kept in memory, as a disk may be full.
    with open(os.memfd_create("output"), "w+b") as output:
        target = "coexec.engines.trial:serve"
        try:
            child = processes.Child(target, "runs the trial", errors=output)
        except ExecutionError as error:
            return f"was not run ({error})"
        with child:
            try:
                child.send((attempt, arguments))
                return str(child.receive(_LIMIT_S))
            except TimeoutError:
                return f"did not end within {_LIMIT_S} s"
            except processes.EndedError:
                ending = processes.ending(child.wait())
        output.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
        messages = [line.strip()[:300] for line in lines if line.strip()]
        return f"{ending} ({messages[-1]})" if messages else ending


def serve(parent: processes.Parent) -> None:
    """Run the trial in its own process and end the process, at the latest after the time limit.

    The limit holds even if the parent process is gone, and if the driver keeps the interpreter's
    lock.
    """
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    parent.send(_attempted(*parent.receive()))
    # No clean-up: a driver that crashes only during clean-up has computed correctly.
    os._exit(0)


def _attempted(attempt: str, arguments: tuple[object, ...]) -> str:
    module, _, function = attempt.partition(":")
    try:
        return str(getattr(import_module(module), function)(*arguments))
    except CoexecError as error:
        return f"failed ({first_line(error)})"
