"""Child processes of coexec, for work in which a driver may lock, hang or crash, and for work that
must not disturb the user's process.

They are started by ``subprocess`` and not by ``multiprocessing``, which would run the user's script
again if it has no ``__name__`` guard. A child process runs a module as a program. Parent and child
exchange pickled objects. Text that the child prints goes to its standard error.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import Any

from coexec.errors import CoexecError, ExecutionError

__all__ = ["Child", "EndedError", "Parent", "can_start", "command", "ending", "variables"]

_FAILURES = (OSError, EOFError, pickle.PickleError, TypeError, AttributeError, ValueError)
"""Errors of pipes and of pickle: the process has ended, or an object cannot be pickled."""


class EndedError(ExecutionError):
    """A child process of coexec has ended early, or a message could not be sent to it."""


def can_start() -> bool:
    """Whether Python can be started. In a frozen program, sys.executable is the user's program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def command(module: str, *words: str) -> list[str]:
    """The command line that runs ``module`` as a program."""
    # -P: a file in the current folder must not take the place of a module.
    return [sys.executable, "-P", "-m", module, *words]


def variables(**more: str) -> dict[str, str]:
    """Environment variables for a child that finds the same modules: those of this process, and
    ``more``."""
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    return os.environ | {"PYTHONPATH": path} | more


def ending(code: int) -> str:
    """How a process with this exit code ended, as the end of a sentence."""
    if code < 0:
        return f"crashed its process ({signal.strsignal(-code) or f'signal {-code}'})"
    return f"ended its process with exit code {code}"


class Child:
    """A child process that runs a module of coexec. The module exchanges messages with the parent
    process by `Parent`."""

    def __init__(
        self,
        module: str,
        does: str,
        errors: int | None = subprocess.DEVNULL,
        own_group: bool = False,
    ) -> None:
        """Start the process.

        Args:
            does: its work, for messages: "the process that *plans in the background* has ended".
            errors: the destination of its standard error, as for ``subprocess``.
            own_group: `kill` ends also the processes that it has started, where the system has
                groups of processes.

        Raises:
            ExecutionError: no process can be started.
        """
        self._does = does
        self._has_group = own_group and hasattr(os, "killpg")
        if not can_start():
            raise ExecutionError(
                f"no process can be started that {does}: this program is frozen, "
                f"and has no Python to start"
            )
        try:
            self._process = subprocess.Popen(
                command(module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables(),
                process_group=0 if self._has_group else None,
            )
        except OSError as error:
            raise ExecutionError(f"no process can be started that {does}: {error}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message to the process.

        Raises:
            EndedError: the process has ended, or the message cannot be pickled.
        """
        try:
            pickle.dump(message, self._questions)
            self._questions.flush()
        except _FAILURES as error:
            raise self._ended(error) from None

    def receive(self) -> Any:
        """The next message of the process.

        Raises:
            EndedError: the process has ended.
            CoexecError: the message is this error.
        """
        try:
            message = pickle.load(self._answers)
        except _FAILURES as error:
            raise self._ended(error) from None
        if isinstance(message, CoexecError):
            raise message
        return message

    def ask(self, message: Any) -> Any:
        """The answer to a message. Raises as `send` and `receive` do."""
        self.send(message)
        return self.receive()

    def _ended(self, error: Exception) -> EndedError:
        return EndedError(
            f"the process that {self._does} has ended early, or could not be told "
            f"what to do ({type(error).__name__})"
        )

    def kill(self) -> None:
        """Kill the process; possible from any thread. A thread in `receive` gets an EndedError."""
        if self._has_group and self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def wait(self, limit_s: float | None = None) -> int:
        """The exit code of the process, as soon as it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not ended within ``limit_s`` seconds.
        """
        return self._process.wait(limit_s)

    def close(self, patience_s: float = 0.0) -> None:
        """Close the pipes, and kill the process if it has not ended ``patience_s`` seconds later.

        Call it in the thread that calls `receive`.
        """
        if not patience_s:
            self.kill()
        for pipe in (self._questions, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self._process.wait(patience_s or None)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Parent:
    """The parent process, used in the child."""

    def __init__(self) -> None:
        # Text that a driver prints must not mix with the messages, so it goes to standard error.
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def receive(self) -> Any:
        """The next message.

        Raises:
            EOFError: the parent has ended, or has closed its end of the pipe.
        """
        return pickle.load(sys.stdin.buffer)

    def send(self, message: Any) -> None:
        """Send a message to the parent. A CoexecError is raised there."""
        pickle.dump(message, self._answers)
        self._answers.flush()

    def end_with_it(self) -> None:
        """End this process as soon as the parent ends. No message can be received afterwards."""
        threading.Thread(target=_end_behind_input, daemon=True).start()


def _end_behind_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
