"""Child processes of coexec, for work in which a driver may lock, hang or crash, and for work that
must not disturb the user's process.

They are started by ``subprocess`` and not by ``multiprocessing``, which would run the user's script
again if it has no ``__name__`` guard. A child process calls one function, which is named as
"module:function" and gets the `Parent`. Parent and child exchange pickled objects. Text that the
child prints goes to its standard error.

A library may start further processes inside a child, and such a process may outlive the child and
keep its pipes open. So each child is the leader of a process group of its own, which is ended as a
whole, and the parent waits for the end of the child and not only for the end of a pipe. If the
parent ends first, by whatever signal, the child ends its own group.
"""

import contextlib
import io
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from coexec.errors import CoexecError, ExecutionError

_FAILURES = (OSError, EOFError, pickle.PickleError, TypeError, AttributeError, ValueError)
"""Errors of pipes and of pickle: the process has ended, or an object cannot be pickled."""
_POLL_S = 0.02
"""Interval in which the end of a child is looked for where the system has no pidfd."""
_END_S = 10.0
"""Seconds that a killed process has to end. A driver that hangs in the kernel may keep it longer;
it is then left to the system."""


class EndedError(ExecutionError):
    """A child process of coexec has ended early, or a message could not be sent to it."""


def can_start() -> bool:
    """Whether Python can be started. In a frozen program, sys.executable is the user's program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def command(target: str) -> list[str]:
    """The command line of a process that calls ``target``, "module:function"."""
    code = "import sys; from coexec.processes import call; call(sys.argv[1])"
    # -P: a file in the current folder must not take the place of a module.
    return [sys.executable, "-P", "-c", code, target]


def call(target: str) -> None:
    """Call a function with the `Parent` of this process. A CoexecError of it is raised there."""
    parent = Parent()  # before the module is imported, which may print something
    module, _, function = target.partition(":")
    try:
        getattr(import_module(module), function)(parent)
    except CoexecError as error:
        parent.send(error)


def variables() -> dict[str, str]:
    """Environment variables for a child that finds the same modules as this process."""
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    return os.environ | {"PYTHONPATH": path}


def ending(code: int) -> str:
    """How a process with this exit code ended, as the end of a sentence."""
    if code < 0:
        return f"crashed its process ({signal.strsignal(-code) or f'signal {-code}'})"
    return f"ended its process with exit code {code}"


class _Pipe(io.RawIOBase):
    """One end of a pipe, without a buffer and without a lock.

    Python's own files have a lock. If a library forks while a thread reads such a file, the lock
    stays locked in the copied process, which then hangs.
    """

    def __init__(self, descriptor: int, is_ready: Callable[[], bool] = lambda: True) -> None:
        """``is_ready``: waits for the pipe; false if the process at its other end has ended."""
        self._descriptor, self._is_ready = descriptor, is_ready

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer. Returns fewer bytes only at the end of the pipe."""
        view, count = memoryview(buffer).cast("B"), 0
        while count < len(view) and self._is_ready():
            read = os.readv(self._descriptor, [view[count:]])
            if not read:
                break
            count += read
        return count

    def write(self, data: Any) -> int:
        """Write everything."""
        view, count = memoryview(data).cast("B"), 0
        while count < len(view):
            if not self._is_ready():
                raise BrokenPipeError
            count += os.write(self._descriptor, view[count:])
        return count


class Child:
    """A child process that calls a function of coexec, which exchanges messages with this process
    by its argument, a `Parent`."""

    def __init__(
        self,
        target: str,
        does: str,
        errors: Any = subprocess.DEVNULL,
    ) -> None:
        """Start the process.

        Args:
            target: the function, as "module:function".
            does: its work, for messages: "the process that *plans in the background* has ended".
            errors: the destination of its standard error, as for ``subprocess``.

        Raises:
            ExecutionError: no process can be started.
        """
        self._does = does
        if not can_start():
            raise ExecutionError(
                f"no process can be started that {does}: this program is frozen, "
                f"and has no Python to start"
            )
        try:
            self._process = subprocess.Popen(
                command(target),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables(),
                process_group=0,
            )
        except OSError as error:
            raise ExecutionError(f"no process can be started that {does}: {error}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        # A write must return when the pipe is full, so that the end of the process is noticed.
        os.set_blocking(self._questions.fileno(), False)
        self._pid_descriptor = _opened_pid(self.pid)
        self._ending, self._sending, self._receiving = (threading.Lock() for _ in range(3))

    @property
    def pid(self) -> int:
        """The number of the process, and of its process group."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Send a message to the process.

        Raises:
            EndedError: the process has ended, or the message cannot be pickled.
        """
        try:
            with self._sending:
                pipe = self._questions.fileno()
                pickle.dump(message, _Pipe(pipe, partial(self._is_ready, pipe, select.POLLOUT)))
        except _FAILURES as error:
            raise self._ended(error) from None

    def receive(self, limit_s: float | None = None) -> Any:
        """The next message of the process.

        Messages that were written before the process ended are returned first.

        Args:
            limit_s: seconds to wait; None: until the process ends.

        Raises:
            TimeoutError: there was no message within ``limit_s``.
            EndedError: the process has ended.
            CoexecError: the message is this error.
        """
        end_s = None if limit_s is None else time.monotonic() + limit_s
        try:
            with self._receiving:
                pipe = self._answers.fileno()
                ready = partial(self._is_ready, pipe, select.POLLIN, end_s)
                message = pickle.load(_Pipe(pipe, ready))
        except TimeoutError:
            raise
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
        """Kill the process and all processes that it has started; possible from any thread. A
        thread in `receive` gets an EndedError."""
        with self._ending:
            self._kill_group()

    def wait(self, limit_s: float | None = None) -> int:
        """The exit code of the process, as soon as it has ended. Processes that it has started are
        ended then.

        Raises:
            TimeoutError: it has not ended within ``limit_s`` seconds.
        """
        if self._process.returncode is None:
            self._is_ready(None, 0, None if limit_s is None else time.monotonic() + limit_s)
        with self._ending:
            self._kill_group()
            return self._process.wait()

    def close(self) -> None:
        """Kill the process and all processes that it has started, and close the pipes; possible
        from any thread, and again."""
        self.kill()
        try:
            self.wait(_END_S)
        except TimeoutError:
            return
        with self._sending, self._receiving:  # no thread uses them any more
            self._questions.close()
            self._answers.close()
            if self._pid_descriptor is not None:
                os.close(self._pid_descriptor)
                self._pid_descriptor = None

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _kill_group(self) -> None:
        # The number is this group's as long as the leader's exit code has not been fetched.
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def _is_ready(self, pipe: int | None, event: int, end_s: float | None = None) -> bool:
        """Wait until a pipe can be read or written. False if the process has ended instead.

        Args:
            pipe: None waits for the end of the process.
            end_s: time of the clock ``time.monotonic`` at which a TimeoutError is raised.
        """
        poll = select.poll()
        if pipe is not None:
            poll.register(pipe, event)
        if self._pid_descriptor is not None:
            poll.register(self._pid_descriptor, select.POLLIN)
        while True:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if self._pid_descriptor is None:
                left_s = _POLL_S if left_s is None else min(left_s, _POLL_S)
            ready = dict(poll.poll(None if left_s is None else 1000 * left_s))
            if pipe in ready:
                return True
            if self._has_ended():
                # Its last message may have been written after the pipe was looked at.
                return pipe is not None and pipe in dict(poll.poll(0))
            if end_s is not None and time.monotonic() >= end_s:
                raise TimeoutError

    def _has_ended(self) -> bool:
        """Whether the process has ended. Its exit code is not fetched."""
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:
            return True


class Parent:
    """The parent process, used in the child.

    As soon as the parent ends or closes the pipe, this process is killed, and all processes that it
    has started.
    """

    def __init__(self) -> None:
        # Nothing else may read the messages or write between them: text that a driver prints goes
        # to standard error. Processes that are started here do not inherit the pipes.
        questions, answers = os.dup(0), os.dup(1)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        self._questions, self._answers = _Pipe(questions), _Pipe(answers)
        # Only the group of the terminal may write to it without being stopped, if it is set so.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, args=(questions,), daemon=True).start()

    def receive(self) -> Any:
        """The next message."""
        return pickle.load(self._questions)

    def send(self, message: Any) -> None:
        """Send a message to the parent. A CoexecError is raised there."""
        pickle.dump(message, self._answers)


def _end_with_parent(pipe: int) -> None:
    """Wait for the end of the parent, then kill this process and its group."""
    poll = select.poll()
    poll.register(pipe, 0)  # reports only that the other end is closed
    # A process that the parent has forked may hold a copy of its end of the pipe.
    parent = _opened_pid(os.getppid())
    if parent is not None:
        poll.register(parent, select.POLLIN)
    poll.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # it was started by hand


def _opened_pid(pid: int) -> int | None:
    """A descriptor that can be read when the process has ended; None where there is none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
