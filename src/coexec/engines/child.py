"""Processes of our own beside the user's: for work in which a driver may lock, hang or crash.

They are started by ``subprocess`` and not by ``multiprocessing``, which would run the user's script
again if it has no ``__name__`` guard.
"""

import os
import sys
import threading
from typing import BinaryIO

__all__ = ["answer_pipe", "command", "end_with_parent", "possible", "variables"]


def possible() -> bool:
    """Whether Python can be started: in a frozen program sys.executable is the user's program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def command(module: str, *words: str) -> list[str]:
    """The words that run ``module`` as a program."""
    # -P: a file in the current folder must not take the place of a module.
    return [sys.executable, "-P", "-m", module, *words]


def variables(**more: str) -> dict[str, str]:
    """This process's variables, and ``more``, for a child that finds the same modules."""
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    return os.environ | {"PYTHONPATH": path} | more


def answer_pipe() -> BinaryIO:
    """In the child: the pipe to its parent. What a driver prints goes to standard error instead."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def end_with_parent() -> None:
    """In the child, behind its question: end as soon as the parent closes standard input."""
    threading.Thread(target=_end_behind_input, daemon=True).start()


def _end_behind_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
