"""Threads and the cores that they run on."""

import os
from contextlib import AbstractContextManager

__all__ = ["BindThread"]


class BindThread(AbstractContextManager[None]):
    """Binds the calling thread to cores, and gives it back those it had. Only Linux can."""

    def __init__(self, cores: set[int]) -> None:
        self._cores = cores
        self._before: set[int] | None = None

    def __enter__(self) -> None:
        if hasattr(os, "sched_setaffinity"):
            before = os.sched_getaffinity(0)  # 0 is the calling thread
            if before != self._cores:
                os.sched_setaffinity(0, self._cores)
                self._before = before

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            os.sched_setaffinity(0, self._before)
