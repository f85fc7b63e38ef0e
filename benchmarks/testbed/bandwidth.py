"""What the links of a test bed carry, measured by plain TCP."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bed import Testbed

from coexec.errors import ExecutionError

__all__ = ["end", "mbits", "message_s", "reaches"]

_PATIENCE_S = 15.0
"""Longer than both ends wait for each other."""


def mbits(bed: Testbed, pairs: Sequence[tuple[str, str]], seconds: float = 2.0) -> list[float]:
    """Mbit/s that arrive from the first of each pair at the second, all pairs at once.

    No machine may be the second of two pairs.

    Raises:
        ExecutionError: a connection failed, as on a link that is cut.
    """
    receivers = [end(bed, second, "receive") for _, second in pairs]
    senders = [
        end(bed, first, "send", bed.address(second), str(seconds)) for first, second in pairs
    ]
    try:
        for sender in senders:
            _result(sender, seconds + _PATIENCE_S)
        return [float(_result(receiver, _PATIENCE_S)) / 1e6 for receiver in receivers]
    finally:
        _stop([*senders, *receivers])


def message_s(
    bed: Testbed, first: str, second: str, sizes: Sequence[int], rounds: int
) -> list[float]:
    """Median seconds from sending a message of each size, in bytes, to an answer of one byte.

    Raises:
        ExecutionError: the connection failed.
    """
    other = end(bed, second, "echo")
    asking = end(bed, first, "ask", bed.address(second), str(rounds), *map(str, sizes))
    try:
        lines = _result(asking, 600.0).split()
    finally:
        _stop([asking, other])
    return [float(line) for line in lines]


def reaches(bed: Testbed, first: str, second: str, timeout_s: float = 1.0) -> bool:
    """Whether the second machine answers a packet of the first one."""
    knocking = end(bed, first, "knock", bed.address(second), str(timeout_s))
    knocking.communicate()
    return knocking.returncode == 0


def end(bed: Testbed, machine: str, *words: str) -> "subprocess.Popen[str]":
    """`tcp_end.py` in a machine."""
    program = str(Path(__file__).with_name("tcp_end.py"))
    return bed.run(
        machine,
        [sys.executable, program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _result(child: "subprocess.Popen[str]", seconds: float) -> str:
    try:
        out, said = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        out, said = "", f"nothing within {seconds:g} s"
    if child.returncode != 0:
        reason = (said.strip().splitlines() or ["no word"])[-1]
        raise ExecutionError(f"a connection in the test bed failed: {reason}; is a link cut?")
    return str(out)


def _stop(children: "Sequence[subprocess.Popen[str]]") -> None:
    for child in children:
        child.kill()
        child.communicate()
