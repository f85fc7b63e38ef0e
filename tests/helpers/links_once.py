"""Launches and links measured once, in short chains: every empty cache asks for them again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from coexec.engines.base import OpenEngine
from coexec.profiling import engines, links

__all__ = ["links_once"]

_MEASURED = ("launch_overhead", "stitching", "wake_up", "crossing", "changing_layout", "own_layout")


@contextmanager
def links_once() -> Iterator[None]:
    """`EngineTimes` remembers what it has measured of the same engines, whatever its store."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _MEASURED:
            patch.setattr(engines, name, _once(getattr(engines, name)))
        yield


def _once(measure: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[tuple[Any, ...], Any] = {}

    def remembered(*of: Any) -> Any:
        key = tuple(map(_kind, of))
        if key not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(links, "_RUNS", 2)
                patch.setattr(links, "_LAYERS", 12)
                known[key] = measure(*of)
        return known[key]

    return remembered


def _kind(given: Any) -> Any:
    """Equal for engines that take equally long; anything else is itself."""
    if isinstance(given, OpenEngine):
        return type(given), given.device.key(given.info.name), given.memory
    return given
