"""What runs a prepared plan, wherever it does so."""

from collections.abc import Callable, Mapping
from typing import Protocol, Self

from coexec.arrays import Array
from coexec.runtime.recorder import Recorder

__all__ = ["Cancelled", "Runner"]

Cancelled = Callable[[], bool]
"""Whether the caller no longer wants the result of a run. Asked by any thread."""


class Runner(Protocol):
    """Answers requests for one model until it is closed: an executor here, or several machines."""

    def run(
        self,
        feeds: Mapping[str, Array],
        recorder: Recorder | None = None,
        cancelled: Cancelled | None = None,
    ) -> dict[str, Array]:
        """One inference. May be called from several threads.

        Args:
            feeds: a C-contiguous array of the right shape and dtype for every model input.
            recorder: notes what ran when. None: nothing is noted.
            cancelled: asked before each segment; the run ends when it says so. None: never.

        Returns:
            The model's outputs by name, in memory that belongs to the caller.

        Raises:
            ExecutionError: a device failed.
            ClosedError: it was closed.
            TerminatedError: ``cancelled`` said so.
            UnfinishedError: no device failed, but this run was interrupted.
        """
        ...

    def close(self) -> None:
        """Give everything back. May be called again."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        """Close it."""
        ...
