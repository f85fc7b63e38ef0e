"""Engines of other packages: found through their entry points, tried, named when they fail."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from coexec.engines.detect import usable_cores
from tests.helpers.small_models import branches

PACKAGES = Path(__file__).parents[1] / "packages"
CORE = usable_cores()[0]


def coexec(package: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process that has a package installed, and a home of its own."""
    path = [str(PACKAGES / package), *sys.path]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home),
    }
    command = [sys.executable, "-m", "coexec", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def model(folder: Path) -> str:
    path = folder / "branches.onnx"
    onnx.save(branches(width=2), str(path))
    return str(path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["thirty", "thirty+onnxruntime"])
def test_an_engine_of_thirty_lines_runs_a_model(device: str, tmp_path: Path) -> None:
    lines = (PACKAGES / "thirty_lines" / "thirty_lines.py").read_text().splitlines()
    assert sum(1 for line in lines if line.strip()) <= 34  # the docstring and imports on top
    done = coexec(
        "thirty_lines",
        tmp_path,
        "run",
        model(tmp_path),
        "--devices",
        f"cpu:{CORE}/{device}",
        "--planner",
        "single",
        "--check",
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_devices_lists_it_beside_ours(tmp_path: Path) -> None:
    done = coexec("thirty_lines", tmp_path, "devices", "--json")
    (cpu,) = [d for d in json.loads(done.stdout)["processors"] if d["name"] == "cpu"]
    assert cpu["by"]["thirty"]["unusable"] is None
    assert next(iter(cpu["by"])) == "onnxruntime", "which devices without a named engine get"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("missing", "engine 'missing' cannot be imported: ModuleNotFoundError"),
        ("unrelated", "is no subclass of coexec.engines.base.Engine"),
        ("misnamed", "is no subclass of coexec.engines.base.Engine with this name"),
        ("raising", "engine raising is unusable .*failed .*ZeroDivisionError: nothing works"),
        ("crashing", "engine crashing is unusable .*crashed its process"),
        ("wrong", "engine wrong is unusable .*gave wrong numbers"),
    ],
)
def test_a_broken_engine_is_named_with_the_remedy(
    engine: str, message: str, tmp_path: Path
) -> None:
    words = ("run", "zoo:squeezenet", "--devices", f"cpu:{CORE}/{engine}", "--planner", "single")
    done = coexec("broken", tmp_path, *words)
    assert done.returncode == 3
    assert re.search(message, done.stderr), done.stderr
    assert "reinstall its package" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_broken_engines_do_not_disturb_others(tmp_path: Path) -> None:
    done = coexec("broken", tmp_path, "devices")
    assert done.returncode == 0
    for engine in ("missing", "unrelated", "misnamed", "raising", "crashing", "wrong"):
        assert engine in done.stdout
    words = ("run", model(tmp_path), "--devices", f"cpu:{CORE}")
    assert coexec("broken", tmp_path, *words, "--check").returncode == 0
