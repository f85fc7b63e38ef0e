"""A report of a small plan on two devices, with a name that tries to leave its script element."""

from pathlib import Path

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


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    model = branches()
    next(node for node in model.graph.node if node.name == "b1.a").name = HOSTILE
    onnx.save(model, str(folder / "small.onnx"))
    devices = two_cores()
    first, second = devices.split(",")
    # The measured costs differ from day to day, and the plan has to use both devices.
    pins = ["--pin", f"b0.a={first}", "--pin", f"b2.a={second}"]
    words = [
        "--devices",
        devices,
        "--planner",
        "heft",
        "--repeats",
        "1",
        "--planners-s",
        "2",
        *pins,
    ]
    file = folder / "small.report.html"
    cache = ["--cache", str(folder / "cache"), "--output", str(file)]
    assert main(["report", str(folder / "small.onnx"), *words, *cache]) == 0
    return file
