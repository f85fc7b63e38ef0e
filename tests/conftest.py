"""Settings and fixtures of all tests."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from links_once import links_once
from needs_opencl import RUNTIME, opencl_name
from quick_choice import quick_choice

from coexec.cache import Cache
from coexec.engines.opencl.pocl import Pocl

os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", "1")
"""PoCL has one thread, whichever test is the first to use OpenCL."""
for _size in ("COLUMNS", "LINES"):  # of the terminal: xdist sets them, and tables would be cut
    os.environ.pop(_size, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--opencl", default="", help="runtime of the OpenCL tests, as 'intel'")


def pytest_configure(config: pytest.Config) -> None:
    RUNTIME[0] = config.getoption("--opencl")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """One cache for all tests: what one of them has lowered, the next need not."""
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def known_links() -> Iterator[None]:
    """`profiling/test_links.py` tests the measurements that are made once here."""
    with links_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def any_number_of_binaries() -> Iterator[None]:
    """Tests compile more kernels than any user's process, and launch each a few times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pocl, "most_binaries", math.inf)
        yield


@pytest.fixture(name="quick_choice")
def _quick_choice() -> Iterator[None]:
    with quick_choice():
        yield


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test's own."""
    yield tmp_path / "cache"


@pytest.fixture(scope="session")
def gpu() -> str:
    """The last core with OpenCL: "cpu:1/opencl". Skips the test where no runtime works."""
    return opencl_name()
