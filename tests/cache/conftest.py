"""A small model and a cache that has all of it, for the tests of this folder."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.harmed import answer, save_model
from tests.helpers.quick_choice import quick_choice
from tests.helpers.settled import settled


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="package")
def warm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm cache, with the choice of "auto" as well; not to be changed."""
    folder = tmp_path_factory.mktemp("warm")
    settled(model)
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
