"""A short run of the soak: `benchmarks/soak_serving.py` has the long one."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.helpers.small_models import branches

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak_serving.py"


@pytest.mark.long
def test_hostile_clients_harm_no_answer_and_no_count(tmp_path: Path) -> None:
    for name, model in ("small", branches()), ("large", branches(size=60)):
        onnx.save(model, str(tmp_path / f"{name}.onnx"))
    files = [str(tmp_path / "small.onnx"), str(tmp_path / "large.onnx")]
    command = [sys.executable, str(SCRIPT), *files, "--rounds", "2000"]
    done = subprocess.run(
        [*command, "--cache", str(tmp_path / "cache")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
