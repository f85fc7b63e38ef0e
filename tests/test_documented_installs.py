"""The install lines of README and docs: extras exist, and the first screen runs as it stands."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coexec.extras import EXTRAS
from tests.helpers.small_models import branches

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "dist", ".*_cache", ".hypothesis")
LIMIT_S = 600


def packages_of(extra: str) -> set[str]:
    """Names of all packages that ``extra`` brings, on any machine."""
    found: set[str] = set()
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            found = found.union(*(packages_of(other) for other in requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_installs_extras_that_exist_from_the_checkout(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"pip install[^\n`]*", text):
        for folder, extras in re.findall(r"(\S*)\[([a-z,-]+)\]", line):
            if folder.strip("'\"") == ".":
                assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), line
            else:
                assert PROJECT["name"] not in folder, f"the index has no coexec: {line}"


@pytest.mark.parametrize("extra", EXTRAS)
def test_errors_name_the_packages_that_the_extra_brings(extra: str) -> None:
    assert {canonicalize_name(name) for name in EXTRAS[extra]} == packages_of(extra)


@pytest.mark.long
def test_the_first_commands_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"\n\n((?: {4}\S.*\n)*(?: {4}.*pip install.*\n)(?: {4}\S.*\n)*)", text)
    assert block is not None
    commands = block[1].replace("python3 ", f"{sys.executable} ")
    assert "pip install" in commands
    assert "coexec optimize model.onnx" in commands
    checkout = shutil.copytree(ROOT, tmp_path / "checkout", ignore=NOT_COPIED)
    onnx.save(branches(), checkout / "model.onnx")
    ended = subprocess.run(
        ["bash", "-euc", commands],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"HOME": str(tmp_path)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "verdict" in ended.stdout
