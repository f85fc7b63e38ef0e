"""`benchmarks/gpu_providers.py` without a GPU, and the tables that it makes."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import onnx
import onnxruntime
import pytest

from coexec.errors import ExecutionError
from coexec.selection.race import Lap, Outcome
from tests.helpers.small_models import branches

FOLDER = Path(__file__).parents[3] / "benchmarks"
AUTO, SESSION, GRAPH = (
    (name, "tf32", "host") for name in ("auto", "CUDA provider", "CUDA provider graph")
)


@pytest.fixture(scope="module")
def processes() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        import gpu_processes
    finally:
        sys.path.remove(str(FOLDER))
    return gpu_processes


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="it would race"
)
def test_without_the_provider_every_rival_is_left_out_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(branches(), str(path))
    words = ["no_such_model", str(path), "--precisions", "tf32", "--folder", str(tmp_path)]
    command = [sys.executable, str(FOLDER / "gpu_providers.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "no_such_model is left out" in done.stderr
    for rival in AUTO, SESSION, GRAPH:
        reason = "is left out: RuntimeError: no CUDA provider in"
        assert f"{' '.join(rival)} of small {reason}" in done.stderr


def test_auto_is_compared_with_the_faster_rival_by_each_figure(processes: ModuleType) -> None:
    laps = {
        AUTO: [Lap(paced=(0.002,), loop=(0.001,))],
        SESSION: [Lap(paced=(0.004,), loop=(0.004,))],
        GRAPH: [Lap(paced=(0.008,), loop=(0.002,))],
    }
    loop, paced = processes.over_best(Outcome(laps), AUTO, [SESSION, GRAPH])
    assert (loop["best rival"], loop["its"], loop["ratio"]) == ("CUDA provider graph", 2.0, 0.5)
    assert (paced["best rival"], paced["its"], paced["ratio"]) == ("CUDA provider", 4.0, 0.5)
    assert [*processes.over_best(Outcome(laps), AUTO, [])] == []


def test_a_rival_that_failed_has_no_time(processes: ModuleType) -> None:
    facts = {AUTO: {"difference": 1e-3, "plan": "gpu:0"}, GRAPH: {"difference": 0.0}}
    outcome = Outcome({AUTO: [Lap((0.002,), (0.001,))], GRAPH: []})
    (row,) = processes.times(outcome, facts)
    assert (row["rival"], row["loop"], row["paced"]) == ("auto", 1.0, 2.0)
    assert (row["difference"], row["plan"]) == ("1.0e-03", "gpu:0")


def test_means_are_those_of_rows_of_one_group(processes: ModuleType) -> None:
    rows = [{"requests": r, "ratio": x} for r, x in (("loop", 0.5), ("paced", 3.0), ("loop", 2.0))]
    loop, paced = processes.means(rows, ["requests"])
    assert loop == {
        "requests": "loop",
        "networks": 2,
        "geometric mean": pytest.approx(1.0),
        "largest": 2.0,
        "at most 1": 1,
    }
    assert paced["networks"] == 1


def test_a_process_that_has_ended_is_left_out(
    processes: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = processes.Case("net", "absent.onnx", str(tmp_path / "absent.npz"))
    process = processes.RivalsProcess("drop-in", case, ["tf32"])
    try:
        assert not process.is_ready(60)
        assert process.rivals(60) == {}
        with pytest.raises(ExecutionError, match="its process has ended, with 1"):
            process.seconds(AUTO)
    finally:
        process.close()
    assert "drop-in for net is left out: its process has ended, with 1" in capfd.readouterr().err
