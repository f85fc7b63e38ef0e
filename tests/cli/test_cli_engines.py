"""The command line and the engines of a device: names, options, plans that say which engine."""

import json
from pathlib import Path

import onnx
import pytest

from coexec.cli import main
from coexec.engines.detect import usable_cores
from coexec.engines.names import without_engine
from coexec.rules import Rules, default_rules
from tests.helpers.gpu_networks import small_network
from tests.helpers.needs_opencl import RUNTIME

CORE = usable_cores()[0]


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(small_network("concat", as_model=True), str(tmp_path / "model.onnx"))
    return str(tmp_path / "model.onnx")


def call(folder: Path, *words: str) -> int:
    runtime = ["--engine", f"opencl.runtime={RUNTIME[0]}"] if RUNTIME[0] else []
    return main([*words, *runtime, "--cache", str(folder / "cache")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "precision=fp16"], "is not of the form ENGINE.OPTION=VALUE, for example"),
        (["--engine", "opencl.precision"], "is not of the form ENGINE.OPTION=VALUE"),
        (["--engine", "opencl.=fp16"], "is not of the form ENGINE.OPTION=VALUE"),
        (["--engine", "opencl.speed=high"], "opencl has no option 'speed'; it has precision, "),
        (["--engine", "opencl.precision=fp8"], "precision='fp8': it is one of fp32, fp16"),
        (["--engine", "onnxruntime.a=b"], "onnxruntime has no option 'a'; it has none"),
        (["--engine", "directx.a=b"], "for the engine 'directx', which is none of "),
        (["--devices", f"cpu:{CORE}/a+b"], f"write cpu:{CORE}/a,cpu:{CORE}/b"),
        (["--devices", f"cpu:{CORE}/directx"], "there is no engine 'directx' here, only "),
        (["--devices", f"cpu:{CORE}/"], "does not name its engine; write"),
        (["--devices", "null:0/opencl"], "engine 'opencl' does not drive 'null:0'"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    words: list[str], message: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    devices = [] if "--devices" in words else ["--devices", f"cpu:{CORE}"]
    absent = 3 if ("directx'" in message and "here" in message) or "not drive" in message else 2
    assert main(["plan", model, *devices, *words, "--cache", str(tmp_path / "cache")]) == absent
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("coexec: ") and message in line


def test_verbs_on_a_gpu_or_its_like(
    gpu: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    on = ["--devices", gpu]
    plan = tmp_path / "plan.json"
    assert main(["inspect", model, "--device", gpu, "--cache", str(tmp_path / "cache")]) == 0
    assert f"{gpu} runs 3 of 3 tasks" in capfd.readouterr().out
    assert call(tmp_path, "profile", model, *on) == 0
    assert gpu in capfd.readouterr().out
    words = ["--planner", "single", "--output", str(plan)]
    assert call(tmp_path, "plan", model, *on, *words) == 0
    rows = json.loads(plan.read_text())["order"]
    assert list(rows) == [without_engine(gpu)]
    assert {row["engine"] for row in rows[without_engine(gpu)]} == {"opencl"}
    capfd.readouterr()
    # A plan says what it needs: no device is named, and the engine is that of the plan.
    assert call(tmp_path, "run", model, "--plan", str(plan), "--check") == 0
    assert "equal to ONNX Runtime" in capfd.readouterr().out
    assert call(tmp_path, "explain", model, "--plan", str(plan), "--json") == 0
    tasks = json.loads(capfd.readouterr().out)["tasks"]
    assert {(t["device"], t["engine"]) for t in tasks} == {(without_engine(gpu), "opencl")}
    other = ["--devices", without_engine(gpu)]
    assert call(tmp_path, "run", model, "--plan", str(plan), *other) == 3
    assert f"the plan computes on {gpu}, the system has" in capfd.readouterr().err


@pytest.mark.usefixtures("no_memory")
def test_an_option_reaches_the_engine(
    gpu: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--devices",
        gpu,
        "--planner",
        "single",
        "--check",
        "--engine",
        "opencl.precision=fp16",
    ]
    assert call(tmp_path, "bench", model, *words, "--repeats", "2") == 0
    assert "within 1e-02 of the largest value" in capfd.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(len(usable_cores()) < 2, reason="this process may use one core only")
@pytest.mark.usefixtures("gpu", "no_memory")
def test_bench_leaves_out_what_cannot_be_open_beside_the_rest(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """PoCL has one set of cores at a time, and "auto" considers each core with it."""
    on = ["--devices", ",".join(f"cpu:{core}" for core in usable_cores()[:2]), "--json"]
    # What is left out does not depend on the winner.
    with default_rules(Rules(rounds=(1, 1))):
        assert call(tmp_path, "bench", model, *on, "--repeats", "1") == 0
    found = json.loads(capfd.readouterr().out)
    alone = {r["name"].removesuffix(" alone") for r in found["rows"] if r["name"].endswith("alone")}
    assert alone and not alone & set(found["left_out"])
    assert len([name for name in alone | set(found["left_out"]) if name.endswith("/opencl")]) >= 2
    # By PoCL and, where it is installed, by Intel's runtime.
    why = ("needs another process", "cannot compute on", "close that device")
    assert all(any(w in reason for w in why) for reason in found["left_out"].values())
