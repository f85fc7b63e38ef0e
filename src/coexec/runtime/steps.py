"""The steps of a run loop: plain data that a loop in C++ or in Python carries out.

`coexec.plan.program` says in which order devices run segments and meet. Linking
(`coexec.runtime.linking`) makes these steps of it, with addresses and functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from coexec.arrays import Array
from coexec.engines.base import NativeCall
from coexec.engines.tiles import TiledLaunch


@dataclass(frozen=True, slots=True)
class AwaitEvent:
    """Wait until an event is signalled in this run."""

    event: int


@dataclass(frozen=True, slots=True)
class SignalEvent:
    """Signal an event: everything that this device did before is complete."""

    event: int


@dataclass(frozen=True, slots=True)
class AwaitWord:
    """Wait until a processor without a thread, such as a GPU, has set a word of 32 bits to 1."""

    address: int
    """In the host's memory. The word is 0 before a run."""


@dataclass(frozen=True, slots=True)
class SetWord:
    """Set a word of 32 bits to 1: everything that this device did before is complete.

    A run that is stopped sets all these words, so that no processor waits for ever.
    """

    address: int


@dataclass(frozen=True, slots=True)
class CallPython:
    """Call a Python function. The run ends if it raises."""

    function: Callable[[], object]
    waits: bool = False
    """Whether it only waits for a processor that may wait for this loop, or launches work there. A
    fork does not wait for its end."""


class Spot(NamedTuple):
    """An address in memory."""

    slot: int
    """Number of the slot whose pointer the run sets. -1: ``offset`` is the address."""
    offset: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class CopyBox:
    """Copy a box of one tensor into a box of another one. They do not overlap."""

    target: Spot
    source: Spot
    run_bytes: int
    """Bytes that are contiguous in both boxes."""
    axes: tuple[tuple[int, int, int], ...] = ()
    """The axes around them, outermost first: size, and strides in bytes of target and source."""


@dataclass(frozen=True, slots=True, eq=False)
class ComputeTiles:
    """Compute launches with a team, whose thread 0 is that of this device."""

    team: "TileTeam"
    number: int
    """Of the launches, from `TileTeam.add`."""
    pointers: Array
    """64-bit pointers of the launches' slots, read when the step begins."""


LoopStep = (
    AwaitEvent
    | SignalEvent
    | AwaitWord
    | SetWord
    | NativeCall
    | CallPython
    | CopyBox
    | ComputeTiles
)

TileSpan = tuple[float, float, int]
"""Begin and end of a tile in seconds of `time.perf_counter`, and the thread that computed it."""

Outcome = tuple[int, int, int, BaseException | None]
"""Why a run has not ended: the device and its step that failed, the result of the C function, and
the exception of the Python function. The number of devices, if `RunLoop.stop` was called."""


class ServedThreads(Protocol):
    """Threads that carry out runs: one calls `run`, each other one `serve`.

    A run that is abandoned must come to rest before the next begins: `rests`.
    """

    def serve(self, device: int) -> None:
        """Carry out the share of a thread in every run. Returns after `end`."""
        ...

    def stop(self) -> None:
        """Abandon the current run, from any thread."""
        ...

    def end(self) -> None:
        """Let all threads return from `serve` after their current step."""
        ...

    def rests(self, device: int) -> bool:
        """Whether a thread has left the latest run."""
        ...

    def pause(self) -> None:
        """Keep all threads from beginning further calls, copies and tiles, until `go_on`."""
        ...

    def pauses(self) -> bool:
        """Whether no other thread is inside of a call, copy or tile."""
        ...

    def go_on(self) -> None:
        """End a `pause`."""
        ...


class RunLoop(ServedThreads, Protocol):
    """Carries out the programs of all devices at the same time: thread ``device`` that of the
    device with this number. `run` carries out the program of the caller's device.

    `stop` is final if the loop has `SetWord` steps.
    """

    def run(
        self,
        slots: Sequence[int],
        look: Callable[[], object] | None = None,
        timed: bool = False,
    ) -> Outcome | None:
        """Carry out all programs once.

        Args:
            slots: the pointers that spots count from.
            look: called by the caller's thread at least every 10 ms, except while it is inside of
                a step. The run is abandoned if it raises.
            timed: whether to record when each step began and ended.

        Returns:
            None if all programs have ended, or else the first failure.

        Raises:
            Exception: of ``look`` or of a signal handler.
        """
        ...

    def spans(self, device: int) -> Sequence[tuple[float, float]]:
        """Begin and end of each step of the latest timed run, in seconds of
        `time.perf_counter`."""
        ...


class TileTeam(ServedThreads, Protocol):
    """Computes launches in tiles. Thread 0 calls `run`, each other one `serve`.

    `native/team.hpp` describes how threads find their tiles.
    """

    def add(self, launches: Sequence[TiledLaunch], slots: int) -> int:
        """Prepare launches, between two runs. Returns their number for `run`.

        Raises:
            IndexError: a tile waits for no earlier one, or a slot does not exist.
            MemoryError: the threads get no memory for the launches.
        """
        ...

    def run(
        self,
        number: int,
        slots: Sequence[int],
        look: Callable[[], object] | None = None,
        timed: bool = False,
    ) -> bool:
        """Compute launches once. Returns whether all have ended: False after `stop` or `end`.

        ``slots``, ``look`` and ``timed``: as of `RunLoop.run`.
        """
        ...

    def spans(self, number: int) -> Sequence[TileSpan]:
        """When each tile was computed in the latest timed run, in the order of launches."""
        ...
