"""Measurements of launches, links and readings that run only once, with short chains. Without this
helper, every empty cache measures them again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coexec.engines.base import OpenEngine
from coexec.profiling import engines, launch_and_transfer

_MEASURED = (
    "launch_overhead", "stitching", "wake_up", "crossing", "changing_layout", "own_layout",
    "joining", "reading",
)  # fmt: skip


@contextmanager
def links_once() -> Iterator[None]:
    """Make `EngineTimes` reuse its measurements of equal engines, whatever its store is."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _MEASURED:
            patch.setattr(engines, name, _once(getattr(engines, name)))
        yield


def _once(measure: Callable[..., Any]) -> Callable[..., Any]:
    cached_times: dict[tuple[Any, ...], Any] = {}

    def remembered(*of: Any) -> Any:
        key = tuple(map(_kind, of))
        if key not in cached_times:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(launch_and_transfer, "_RUNS", 2)
                patch.setattr(launch_and_transfer, "_LAYERS", 12)
                cached_times[key] = measure(*of)
        return cached_times[key]

    return remembered


def _kind(given: Any) -> Any:
    """A key that is equal for engines with equal times; any other object is its own key."""
    if isinstance(given, OpenEngine):
        return type(given), given.device.key, given.memory
    return tuple(map(_kind, given)) if isinstance(given, list) else given
