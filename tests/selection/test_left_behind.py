"""A short run of the campaign: `benchmarks/left_behind.py` has the long one."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "left_behind.py"


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_planning_that_ends_early_leaves_nothing(seed: int) -> None:
    counts = ["--sessions", "5", "--optimize", "3", "--signals", "2", "--seed", str(seed)]
    done = subprocess.run([sys.executable, str(SCRIPT), *counts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
