"""Settings and fixtures of all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs_opencl import pocl_name

from coexec.cache import Cache

EXPORTS = Path(__file__).parents[1].parent / "shared" / "models"
"""Weightless exports of public architectures, where the checkout has them beside it."""


os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", "1")
"""The tests' PoCL devices have one core each, whichever test is the first to use OpenCL."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """One cache for all tests: what one of them has lowered, the next need not."""
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test's own."""
    yield tmp_path / "cache"


@pytest.fixture(scope="session")
def gpu() -> str:
    """The name of PoCL on the last core. Skips the test where no PoCL works."""
    return pocl_name()
