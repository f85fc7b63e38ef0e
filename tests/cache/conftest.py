"""A small model and a cache that has all of it, for the tests of this folder."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from harmed import answer, save_model
from quick_choice import quick_choice

_TRUSTED_S = 2.5
"""The content of a file that is younger than two seconds is not remembered: see `digest`."""


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="package")
def warm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm cache, with the choice of "auto" as well; not to be changed."""
    folder = tmp_path_factory.mktemp("warm")
    young_s = time.time() - model.stat().st_ctime
    time.sleep(max(0.0, _TRUSTED_S - young_s))
    with quick_choice():
        for planner in ("heft", "auto"):
            answer(model, folder, planner)
    return folder


@pytest.fixture(scope="package")
def expected(warm: Path, model: Path) -> list[Any]:
    return answer(model, warm)


@pytest.fixture
def copy(warm: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(warm, tmp_path / "cache"))
