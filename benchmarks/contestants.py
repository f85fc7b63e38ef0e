"""Rivals in processes of their own, which are asked in turns.

An engine's threads belong to its process, and some engines bind them once for a process.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from coexec.choosing.idle import Stopwatch, cpu_clock
from coexec.errors import CoexecError, ExecutionError, first_line

__all__ = ["Contestant", "Ready", "started", "watch_of"]

_LIMIT_S = 30.0
"""For a process to end by itself."""


class Ready(NamedTuple):
    """What a rival's process has when it is warm."""

    outputs: list[Any]
    """Of one run, for the comparison."""
    turn: Callable[[], Any]
    """What is done there when a turn is asked for; the result has to be picklable."""
    note: Any = None


@dataclass(frozen=True)
class Contestant:
    """A process that runs one model in one way."""

    name: str
    process: int
    """Its id."""
    connection: Connection
    outputs: list[Any]
    note: Any

    def turn(self) -> Any:
        """The result of a turn there.

        Raises:
            CoexecError: its session failed, or the process has ended.
        """
        try:
            self.connection.send(True)
        except OSError:
            raise ExecutionError(f"the process of {self.name} has ended") from None
        return _received(self.connection, self.name)


@contextmanager
def started(
    makers: Mapping[str, Callable[[], Ready]], left_out: Callable[[str, str], None]
) -> Iterator[list[Contestant]]:
    """A process for each maker, which is called there, one after the other.

    Args:
        makers: functions of a module, or partials of them.
        left_out: told the name of a rival that does not start, and why.
    """
    context = multiprocessing.get_context("spawn")
    found, processes = [], []
    try:
        for name, maker in makers.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, maker))
            process.start()
            theirs.close()  # so that the end of the process ends the connection
            processes.append((process, ours))
            try:
                outputs, note = _received(ours, name)
            except CoexecError as error:
                left_out(name, first_line(error))
            else:
                found.append(Contestant(name, process.pid or 0, ours, outputs, note))
        yield found
    finally:
        for _, ours in processes:
            ours.close()
        for process, _ in processes:
            process.join(_LIMIT_S)
            if process.exitcode is None:
                process.kill()
                process.join()


def watch_of(contestants: list[Contestant]) -> Stopwatch:
    """A stopwatch that sees when the processes of the contestants are idle."""
    return Stopwatch(used_s=cpu_clock([one.process for one in contestants]))


def _received(connection: Connection, name: str) -> Any:
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        raise ExecutionError(f"the process of {name} has ended") from None
    if isinstance(answer, CoexecError):
        raise answer
    return answer


def _serve(connection: Connection, maker: Callable[[], Ready]) -> None:
    """Send the outputs, then the result of each turn that is asked for, until the connection is
    closed. What engines print is not the table's."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    ready = _tried(maker)
    connection.send((ready.outputs, ready.note) if isinstance(ready, Ready) else ready)
    with contextlib.suppress(EOFError, OSError):
        while isinstance(ready, Ready):
            connection.recv()
            connection.send(_tried(ready.turn))


def _tried(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or the error."""
    try:
        return work()
    except CoexecError as error:
        return error
    except Exception as error:  # an engine's own: it fails, and is left out
        return ExecutionError(f"{type(error).__name__}: {first_line(error)}")
