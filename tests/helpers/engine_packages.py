"""Packages with engines that only some tests find."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coexec.engines import registry

_PACKAGES = Path(__file__).parents[1] / "packages"


def forget_engines() -> None:
    """Let the registry look for engines again."""
    for known in (
        registry._entries,
        registry._of_families,
        registry.load_engine,
        registry._working,
    ):
        known.cache_clear()


@contextmanager
def installed_package(name: str) -> Iterator[Path]:
    """Makes the package in tests/packages/NAME a part of this Python; gives its folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = _PACKAGES / name
        patch.syspath_prepend(folder)
        forget_engines()
        yield folder
    forget_engines()
