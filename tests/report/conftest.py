"""A report of a small plan on two devices, with a name that tries to leave its script element."""

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import main
from coexec.engines.detect import usable_cores
from tests.helpers.small_models import branches

HOSTILE = "</script><img src=x onerror=alert(1)>"
"""Name of a task."""


def two_cores() -> str:
    cores = usable_cores()[:2]
    if len(cores) < 2:
        pytest.skip("this process may use one core, and the plan needs two")
    return ",".join(f"cpu:{core}" for core in cores)


def report(model: Path, *words: str) -> int:
    """Write a report beside the model, with a second for all planners."""
    cache = ["--cache", str(model.parent / "cache"), "--output", str(model.with_suffix(".html"))]
    return main(["report", str(model), *words, *cache, "--planners-s", "1"])


def data_of(file: Path) -> dict[str, Any]:
    """The contents of a page, or of the page beside a model."""
    text = file.with_suffix(".html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(branches(), str(tmp_path / "small.onnx"))
    return tmp_path / "small.onnx"


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = branches()
    next(node for node in model.graph.node if node.name == "b1.a").name = HOSTILE
    path = tmp_path_factory.mktemp("report") / "small.onnx"
    onnx.save(model, str(path))
    first, second = two_cores().split(",")
    # The measured costs differ from day to day, and the plan has to use both devices.
    words = f"--planner heft --repeats 1 --pin b0.a={first} --pin b2.a={second}".split()
    assert report(path, "--devices", two_cores(), *words) == 0
    return path.with_suffix(".html")
