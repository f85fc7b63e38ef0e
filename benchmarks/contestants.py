"""Rivals in separate processes, which run in turns.

The threads of an engine belong to its process, and some engines bind them once for a process.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from coexec.errors import CoexecError, ExecutionError, first_line
from coexec.selection.quiet_moment import Stopwatch, cpu_clock

__all__ = ["Contestant", "Ready", "started", "watch_of"]

_LIMIT_S = 30.0
"""Time in which a process has to end by itself."""


class Ready(NamedTuple):
    """State of a rival's process after warm-up."""

    outputs: list[Any]
    """Outputs of one run, for the comparison."""
    turn: Callable[[], Any]
    """Function of one turn; its result has to be picklable."""
    note: Any = None


@dataclass(frozen=True)
class Contestant:
    """A process that runs one model in one way."""

    name: str
    process: int
    """Number of the process."""
    connection: Connection
    outputs: list[Any]
    note: Any

    def turn(self) -> Any:
        """The result of one turn in the process.

        Raises:
            CoexecError: the session in the process failed, or the process has ended.
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
    """Start a process for each maker, one after the other. The process calls the maker.

    Args:
        makers: functions of a module, or partials of them.
        left_out: called with the name of a rival that does not start, and the reason.
    """
    context = multiprocessing.get_context("spawn")
    contestants, processes = [], []
    try:
        for name, maker in makers.items():
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(child_end, maker))
            process.start()
            child_end.close()  # so that the end of the process ends the connection
            processes.append((process, parent_end))
            try:
                outputs, note = _received(parent_end, name)
            except CoexecError as error:
                left_out(name, first_line(error))
            else:
                contestants.append(Contestant(name, process.pid or 0, parent_end, outputs, note))
        yield contestants
    finally:
        for _, parent_end in processes:
            parent_end.close()
        for process, _ in processes:
            process.join(_LIMIT_S)
            if process.exitcode is None:
                process.kill()
                process.join()


def watch_of(contestants: list[Contestant]) -> Stopwatch:
    """A stopwatch that detects whether the processes of the contestants are idle."""
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
    """Send the outputs, then the result of each requested turn, until the connection is closed.

    Standard error is discarded, so that messages of engines do not appear between the tables.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    ready = _tried(maker)
    connection.send((ready.outputs, ready.note) if isinstance(ready, Ready) else ready)
    with contextlib.suppress(EOFError, OSError):
        while isinstance(ready, Ready):
            connection.recv()
            connection.send(_tried(ready.turn))


def _tried(work: Callable[[], Any]) -> Any:
    """The result of ``work``, or its error."""
    try:
        return work()
    except CoexecError as error:
        return error
    except Exception as error:  # an error of the engine: the rival is left out
        return ExecutionError(f"{type(error).__name__}: {first_line(error)}")
