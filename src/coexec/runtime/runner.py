"""The interface of objects that run a prepared plan, on this machine or on several ones."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

from coexec.arrays import Array

if TYPE_CHECKING:
    from coexec.runtime.recorder import Recorder

Cancelled = Callable[[], bool]
"""Function that returns whether the caller has cancelled a run. Called by any thread."""


class Runner(Protocol):
    """Answers requests for one model until it is closed: an executor here, or several machines."""

    def run(
        self,
        feeds: Mapping[str, Array],
        recorder: "Recorder | None" = None,
        cancelled: Cancelled | None = None,
    ) -> dict[str, Array]:
        """Run one inference. May be called from several threads.

        Args:
            feeds: a C-contiguous array of the right shape and dtype for every model input.
            recorder: records what ran when. None: nothing is recorded.
            cancelled: called before each segment; the run ends when it returns True. None: the run
                is never cancelled.

        Returns:
            The model's outputs by name, in memory that belongs to the caller.

        Raises:
            ExecutionError: a device failed.
            ClosedError: the runner was closed.
            TerminatedError: ``cancelled`` returned True.
            UnfinishedError: no device failed, but this run was interrupted.
        """
        ...

    def close(self) -> None:
        """Release all resources. May be called again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """Close it."""
        ...
