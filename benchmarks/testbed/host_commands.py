"""Commands of the host (`ip`, `tc`), and signals that wait until one has ended."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from coexec.errors import ExecutionError

__all__ = ["command", "in_namespace", "signals_wait", "succeeds"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Signals that end a program are delivered when the block has ended.

    So no command of the host is left half done, and no removal is. Only the main thread is
    interrupted by signals in Python; elsewhere the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    # None is a handler that is not Python's, and could not be put back.
    ours = [which for which in _ENDING if signal.getsignal(which) is not None]
    before = {which: signal.signal(which, note) for which in ours}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


def command(*words: str) -> str:
    """What a command of the host prints.

    It runs in a session of its own: Ctrl-C in the terminal does not reach it.

    Raises:
        ExecutionError: it is missing, or failed; the message has its own words.
    """
    with signals_wait():
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, start_new_session=True, check=False
            )
        except FileNotFoundError:
            raise ExecutionError(
                f"the test bed needs the command {words[0]!r}, which is not installed; on Debian: "
                f"apt-get install iproute2 mount"
            ) from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        right = "" if os.geteuid() == 0 else "; the test bed needs root"
        raise ExecutionError(f"`{' '.join(words)}` failed: {said}{right}")
    return done.stdout


def succeeds(*words: str) -> bool:
    """Whether a command of the host succeeds."""
    try:
        command(*words)
    except ExecutionError:
        return False
    return True


def in_namespace(namespace: str, *words: str) -> tuple[str, ...]:
    """The command that runs ``words`` in a network namespace, with the same process id."""
    return ("ip", "netns", "exec", namespace, *words)
