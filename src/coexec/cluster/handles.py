"""How machines are called: the same way, be they Ray's actors or objects of this process."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

__all__ = [
    "Event",
    "FrameAnswer",
    "FrameFailure",
    "MachineFacts",
    "MachineHandle",
    "MachineLostError",
    "News",
    "Spent",
    "Unreached",
    "nothing",
    "within",
]  # fmt: skip


T = TypeVar("T")


class MachineLostError(Exception):
    """The machine that was called does not exist any more, or cannot be reached."""


class MachineHandle(Protocol):
    """A machine, near or far. Handles can be sent to other machines."""

    def call(self, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method of `coexec.cluster.machine.Machine`.

        Raises:
            MachineLostError: while it is awaited, if the machine is gone.
            Exception: what the method raised.
        """
        ...


@dataclass(frozen=True)
class MachineFacts:
    """What a machine says of itself."""

    name: str
    build: str
    """Of its coexec, see `coexec.cluster.build`."""
    host: str
    process: int
    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """The outputs of a frame."""

    epoch: int
    frame: int
    outputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FrameFailure:
    """A frame that a machine cannot go on with."""

    epoch: int
    frame: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """A message that another machine has not taken in time, or not at all."""

    epoch: int
    target: str
    reason: str


Event = FrameAnswer | FrameFailure | Unreached


@dataclass(slots=True)
class Spent:
    """How long steps of one kind took: computations of a share, or messages to a machine."""

    count: int = 0
    seconds: float = 0.0
    amount: int = 0
    """Multiply-accumulates, or bytes."""

    def add(self, seconds: float, amount: int) -> None:
        """Count one more."""
        self.count += 1
        self.seconds += seconds
        self.amount += amount

    def merge(self, other: "Spent") -> None:
        """Add what was spent elsewhere, or later."""
        self.count += other.count
        self.seconds += other.seconds
        self.amount += other.amount

    def clear(self) -> None:
        """Forget all."""
        self.count, self.seconds, self.amount = 0, 0.0, 0


@dataclass
class News:
    """What happened on a machine since it was asked the last time."""

    events: list[Event] = field(default_factory=list)
    computed: Spent = field(default_factory=Spent)
    """Computations of all shares; their multiply-accumulates."""
    sent: dict[str, Spent] = field(default_factory=dict)
    """By target, messages that were taken; their bytes."""
    waiting: int = 0
    """Computations that could start."""
    inside: int = 0
    """Frames that it has something of."""
    computing_s: float = 0.0
    """How long it has computed the share that it is at."""
    at_s: float = 0.0
    """On the machine's own clock."""
    spans: list[tuple[str, int, int, float, float]] = field(default_factory=list)
    """What it did, if it was asked to note that: "compute", or "to NAME" for a message; stage,
    frame, begin and end in seconds on the machine's own clock."""


async def within(what: Awaitable[T], limit_s: float) -> T:
    """What is awaited.

    Raises:
        TimeoutError: it takes longer than ``limit_s``; it is not waited for any more.
    """
    # `asyncio.wait_for` forgets that it was cancelled when the result comes at that moment (3.11).
    async with asyncio.timeout(limit_s):
        return await what


def nothing(size_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A message to measure links with."""
    return np.zeros(size_bytes, np.uint8)
