"""The common interface of machines, be they Ray's actors or objects of this process."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class MachineLostError(Exception):
    """The machine that was called has ended, or cannot be reached."""


class MachineHandle(Protocol):
    """A local or remote machine. Handles can be sent to other machines."""

    def call(self, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method of `coexec.pipeline.cluster.machine.Machine`.

        Raises:
            MachineLostError: the machine is gone; raised when the call is awaited.
            Exception: the exception of the method.
        """
        ...


@dataclass(frozen=True)
class MachineFacts:
    """Properties that a machine reports of itself."""

    name: str
    build: str
    """Version of its coexec, see `coexec.pipeline.cluster.build`."""
    host: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """The outputs of a frame."""

    epoch: int
    frame: int
    outputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FrameFailure:
    """A frame that failed on a machine."""

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
    """Number and time of steps of one kind: computations of a share, or messages to a machine."""

    count: int = 0
    seconds: float = 0.0
    amount: int = 0
    """Sum of the multiply-accumulates, or of the bytes."""

    def add(self, seconds: float, amount: int) -> None:
        """Count one more step."""
        self.count += 1
        self.seconds += seconds
        self.amount += amount

    def merge(self, other: "Spent") -> None:
        """Add the steps of ``other``."""
        self.count += other.count
        self.seconds += other.seconds
        self.amount += other.amount


@dataclass
class News:
    """Events and sums of a machine since the last call of `Machine.news`."""

    events: list[Event] = field(default_factory=list)
    computed: Spent = field(default_factory=Spent)
    """Computations of all shares; the amount is multiply-accumulates."""
    sent: dict[str, Spent] = field(default_factory=dict)
    """Messages that were taken, by target; the amount is bytes."""
    waiting: int = 0
    """Number of computations that are ready to start."""
    inside: int = 0
    """Number of frames in flight on the machine."""
    computing_s: float = 0.0
    """Seconds since the running computation began; 0 if none runs."""
    at_s: float = 0.0
    """Time of these news on the machine's own clock."""
    spans: list[tuple[str, int, int, float, float]] = field(default_factory=list)
    """Recorded steps, if recording is on: kind ("compute", or "to NAME" for a message), stage,
    frame, begin and end in seconds on the machine's own clock."""


async def within(what: Awaitable[T], limit_s: float) -> T:
    """Result of an awaitable.

    Raises:
        TimeoutError: the result takes longer than ``limit_s``; it is then no longer awaited.
    """
    # `asyncio.wait_for` loses a cancellation that arrives together with the result (Python 3.11).
    async with asyncio.timeout(limit_s):
        return await what
