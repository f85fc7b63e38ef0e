"""Settings and fixtures of all tests."""

import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from coexec.cache import Cache
from tests.helpers.compiled_once import compiled_once
from tests.helpers.core_programs import BLOCK
from tests.helpers.examples import FACTOR, scaled
from tests.helpers.links_once import links_once
from tests.helpers.opencl_gpu import GPU, stand_in
from tests.helpers.quick_choice import quick_choice

for _size in ("COLUMNS", "LINES"):  # of the terminal: xdist sets them, and tables would be cut
    os.environ.pop(_size, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--block",
        default="auto",
        choices=["auto", "4", "8", "16"],
        help="channels of a block of the engine cpp",
    )
    parser.addoption(
        "--examples",
        type=int,
        default=1,
        metavar="FACTOR",
        help="property tests draw so many times as many examples",
    )
    parser.addoption(
        "--part",
        default="0/1",
        metavar="SEED/N",
        help="each N-th of the selected tests, from number SEED modulo N on",
    )
    parser.addoption(
        "--emulator",
        default="",
        metavar="COMMAND",
        help="starts Python for the processes that tests start",
    )


def pytest_configure(config: pytest.Config) -> None:
    BLOCK[0] = config.getoption("--block")
    FACTOR[0] = config.getoption("--examples")
    # Machines and their load differ: an example may take any time.
    most = min(settings.default.max_examples, scaled(20))
    settings.register_profile("patient", settings.default, deadline=None, max_examples=most)
    settings.load_profile("patient")
    if emulator := config.getoption("--emulator"):
        sys.executable = _emulated(emulator)


@pytest.hookimpl(wrapper=True)  # around pytest, which leaves out what -m does not name
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Mark all but every n-th case of a test that is ``sampled(n)`` as long. Of the tests that
    pytest selects, keep the part that ``--part`` names."""
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % mark.args[0]:
                item.add_marker("long")
            cases[test] += 1
    result = yield
    seed, parts = map(int, config.getoption("--part").split("/"))
    left_out = [item for number, item in enumerate(items) if (number - seed) % parts]
    items[:] = items[seed % parts :: parts]
    config.hook.pytest_deselected(items=left_out)
    return result


def _emulated(emulator: str) -> str:
    """A program that starts this Python by ``emulator``."""
    path = Path(tempfile.mkdtemp(prefix="coexec-tests-")) / "python"
    path.write_text(f'#!/bin/sh\nexec {emulator} {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return str(path)


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
def compiled_kernels(pytestconfig: pytest.Config) -> Iterator[None]:
    """`engines/cpp/test_cpp_compiler.py` has compilers of its own, whose code is not found here."""
    assert pytestconfig.cache is not None
    with compiled_once(pytestconfig.cache.mkdir("kernels")):
        yield


@pytest.fixture(name="quick_choice")
def _quick_choice() -> Iterator[None]:
    with quick_choice():
        yield


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder of the test's own."""
    yield tmp_path / "cache"


@pytest.fixture
def gpu() -> Iterator[str]:
    """A GPU with OpenCL: "gpu:0/opencl", which is PoCL on a core. Skips the test without PoCL."""
    with stand_in():
        yield GPU
