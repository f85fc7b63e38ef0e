"""`coexec check`: the plan, every task, and the engine of another package that computes wrongly."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import coexec
from coexec.cli import main
from coexec.cli.exits import CANNOT, CHECK_FAILED, DONE, WRONG_USAGE
from coexec.engines import registry
from coexec.engines.detect import usable_cores
from coexec.errors import DegradedWarning
from coexec.graph.graph import Graph, Piece
from coexec.hardware.hardware import Place
from coexec.model.load import load
from coexec.plan.plan import Plan, Provenance
from coexec.selection.plan_files import text_of
from tests.helpers.graphs import halves
from tests.helpers.small_models import branches, from_nodes, tensor_info
from tests.model.test_opaque import counted

PACKAGE = Path(__file__).parents[1] / "packages" / "harmed"
CORES = [f"cpu:{core}" for core in usable_cores()[:2]]
CPU, HARMED = CORES[0], f"{CORES[-1]}/harmed"
Captured = pytest.CaptureFixture[str]


def forget() -> None:
    for known in (registry._entries, registry.load_engine, registry._working):
        known.cache_clear()


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the package with the engine "harmed"."""
    monkeypatch.syspath_prepend(PACKAGE)
    forget()
    yield
    monkeypatch.undo()
    forget()


def words(folder: Path, proto: onnx.ModelProto | None = None) -> list[str]:
    """The command line with a model."""
    onnx.save(branches() if proto is None else proto, str(folder / "model.onnx"))
    return ["check", str(folder / "model.onnx"), "--cache", str(folder / "cache")]


def harm(operator: str, how: str = "one more") -> list[str]:
    return ["--engine", f"harmed.operator={operator}", "--engine", f"harmed.how={how}"]


def document(capfd: Captured) -> Any:
    return json.loads(capfd.readouterr().out)


def test_the_outputs_of_a_plan_are_judged_as_by_the_option_check(
    tmp_path: Path, capfd: Captured
) -> None:
    check = [*words(tmp_path), "--devices", HARMED, "--planner", "single"]
    assert main(check) == DONE
    assert "equal to ONNX Runtime within 1e-04" in capfd.readouterr().out
    assert main([*check, "--json", *harm("MaxPool")]) == CHECK_FAILED
    found = document(capfd)
    assert found["error"]["kind"] == "CheckError" and found["differences"]["y"] > 1e-2


def test_a_refusal_names_the_command_that_shows_it(tmp_path: Path, capfd: Captured) -> None:
    """The engine is wrong for inputs of zeros alone."""
    check = [*words(tmp_path), "--devices", HARMED, "--planner", "single", *harm("Conv", "zeros")]
    with (
        pytest.warns(DegradedWarning, match=r"with zeros \(coexec check --probe zeros\), output"),
        coexec.InferenceSession(
            tmp_path / "model.onnx",
            devices=[HARMED],
            planner="single",
            cache=tmp_path / "cache",
            engine_options={"harmed": {"operator": "Conv", "how": "zeros"}},
        ),
    ):
        pass
    assert main(check) == DONE
    assert main([*check, "--probe", "zeros"]) == CHECK_FAILED
    capfd.readouterr()
    assert main([*check, "--probe", "zeros", "--tasks", "--json"]) == CHECK_FAILED
    found = document(capfd)
    assert found["counts"]["differs"] == 1 and found["first"]["task"] == "stem"


@pytest.mark.parametrize("number", [np.nan, 1e6])
def test_inputs_that_no_plan_answers_are_not_judged(
    number: float, tmp_path: Path, capfd: Captured
) -> None:
    x = np.ones((1, 3, 20, 20), np.float32)
    x[0, 1, 2, 3] = number
    np.savez(tmp_path / "x.npz", x=x)
    check = [*words(tmp_path), "--devices", HARMED, "--planner", "single", *harm("MaxPool")]
    assert main([*check, "--inputs", str(tmp_path / "x.npz")]) == DONE
    assert "a session lets ONNX Runtime answer" in capfd.readouterr().out


def test_other_float_values_need_a_float_input(tmp_path: Path, capfd: Captured) -> None:
    ends = tensor_info("x", [4], TensorProto.INT64), tensor_info("y", [4], TensorProto.INT64)
    nodes = [helper.make_node("Abs", ["x"], ["y"], "abs")]
    check = words(tmp_path, from_nodes(nodes, [ends[0]], [ends[1]]))
    assert main([*check, "--devices", CPU, "--tasks", "--probe", "zeros"]) == WRONG_USAGE
    (line,) = capfd.readouterr().err.splitlines()
    assert "--probe zeros" in line and "has no float input" in line


def test_tasks_are_compared_on_every_named_device(tmp_path: Path, capfd: Captured) -> None:
    check = [*words(tmp_path), "--tasks", "--devices", f"{CPU},{CPU}/harmed", "--json"]
    assert main(check) == DONE
    found = document(capfd)
    tasks = [task.name for task in load(branches()).graph.tasks]
    places = [f"{CPU}/onnxruntime", f"{CPU}/harmed"]
    assert [(row["task"], row["place"]) for row in found["tasks"]] == [
        (task, place) for task in tasks for place in places
    ]
    assert found["counts"] == {"equal": 2 * len(tasks)} and found["first"] is None


def test_the_first_task_that_differs_is_named(tmp_path: Path, capfd: Captured) -> None:
    check = [*words(tmp_path), "--tasks", "--devices", HARMED, *harm("MaxPool")]
    assert main([*check, "--json"]) == CHECK_FAILED
    found = document(capfd)
    assert found["counts"] == {"equal": len(found["tasks"]) - 1, "differs": 1}
    first = found["first"]
    assert (first["task"], first["operators"], first["place"]) == ("pool", "MaxPool", HARMED)
    assert first["output"] == "pool" and first["index"] == [0, 47, 9, 9]
    assert first["value"] == pytest.approx(first["expected"] + 1)
    assert first["elements"] == 1 and first["numbers_lost"] == 0
    assert any("= MaxPool(joined)" in line for line in first["module"])

    assert main(check) == CHECK_FAILED
    said = capfd.readouterr()
    assert "differs: pool (MaxPool) on" in said.out and "at [0, 47, 9, 9]: " in said.out
    assert "= MaxPool(joined)" in said.out
    assert said.err.splitlines()[-1].startswith("coexec: 1 of ")
    assert "the first is 'pool' (MaxPool)" in said.err


def test_lost_numbers_are_named(tmp_path: Path, capfd: Captured) -> None:
    check = [*words(tmp_path), "--tasks", "--devices", HARMED]
    assert main([*check, *harm("MaxPool", "NaN")]) == CHECK_FAILED
    said = capfd.readouterr().out
    assert "differs: pool (MaxPool)" in said and ": nan, in" in said
    assert "output pool: 1 elements have other NaN or infinity" in said


@pytest.mark.parametrize(
    ("how", "code", "verdict", "reason"),
    [
        ("refused", DONE, "refused", "there is no Concat here"),
        ("fails", CANNOT, "failed", "made to fail"),
        ("raises", CANNOT, "failed", "KeyError: 'made to raise'"),
    ],
)
def test_a_task_that_does_not_run_is_listed_with_the_reason(
    how: str, code: int, verdict: str, reason: str, tmp_path: Path, capfd: Captured
) -> None:
    check = [*words(tmp_path), "--tasks", "--devices", HARMED, *harm("Concat", how)]
    assert main(check) == code
    rows = capfd.readouterr().out.splitlines()
    row = next(row for row in rows if row.strip().startswith(verdict))
    assert reason in row and row.split()[1] == "1"


def test_every_task_is_listed_on_request(tmp_path: Path, capfd: Captured) -> None:
    assert main([*words(tmp_path), "--tasks", "--all", "--devices", CPU]) == DONE
    rows = capfd.readouterr().out.splitlines()
    names = [task.name for task in load(branches()).graph.tasks]
    assert [row.split()[0] for row in rows[1 : len(names) + 1]] == names


def in_halves(graph: Graph) -> Plan:
    """The lower rows of the pool on the harmed engine, everything else on the other device."""
    first: list[Piece] = []
    second: list[Piece] = []
    for task in graph.tasks:
        if task.name == "pool":
            upper, lower = halves(graph, task, 2, 5)
            first.append(Piece(task.name, upper))
            second.append(Piece(task.name, lower))
        else:
            first.append(graph.whole_piece(task))
    pieces = {
        Place(CORES[0], "onnxruntime"): tuple(first),
        Place(CORES[1], "harmed"): tuple(second),
    }
    return Plan.of_places(graph.fingerprint, pieces, Provenance("by hand"))


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
def test_pieces_of_a_plan_are_compared_in_their_region(tmp_path: Path, capfd: Captured) -> None:
    graph = load(branches(), name="model").graph
    (tmp_path / "plan.json").write_text(text_of(in_halves(graph), graph, {}))
    check = [*words(tmp_path), "--tasks", "--plan", str(tmp_path / "plan.json"), "--json"]
    assert main(check) == DONE
    assert {row["region"] for row in document(capfd)["tasks"]} > {None}
    assert main([*check, *harm("MaxPool")]) == CHECK_FAILED
    found = document(capfd)
    assert found["counts"]["differs"] == 1
    assert found["first"]["region"] and found["first"]["place"] == HARMED
    assert found["first"]["index"] == [0, 47, 9, 9]


def test_a_segment_is_named_if_its_tasks_are_wrong_only_together(
    tmp_path: Path, capfd: Captured
) -> None:
    check = [*words(tmp_path), "--tasks", "--devices", HARMED, "--planner", "single"]
    assert main(check) == DONE
    assert "compared and 1 segments of the plan, by" in capfd.readouterr().out
    check += harm("Concat", "together")
    assert main([*check, "--json"]) == CHECK_FAILED
    found = document(capfd)
    assert found["counts"] == {"equal": len(found["tasks"])}
    assert [row["verdict"] for row in found["segments"]] == ["differs"]
    assert found["first"]["operators"] == f"{len(found['tasks'])} tasks"
    assert main(check) == CHECK_FAILED
    assert "no task differs from ONNX Runtime by itself, but 1 of 1" in capfd.readouterr().err


def test_an_engine_is_not_wrong_where_only_onnx_runtime_is(tmp_path: Path, capfd: Captured) -> None:
    """Its Sigmoid is an approximation, whose error is large beside very small results."""
    ends = tensor_info("x", [64]), tensor_info("y", [64])
    nodes = [helper.make_node("Sigmoid", ["x"], ["y"], "gate")]
    check = words(tmp_path, from_nodes(nodes, [ends[0]], [ends[1]]))
    np.savez(tmp_path / "x.npz", x=np.linspace(-16, -12, 64, dtype=np.float32))
    check += ["--tasks", "--devices", HARMED, "--inputs", str(tmp_path / "x.npz"), "--json"]
    assert main(check) == DONE
    (row,) = document(capfd)["tasks"]
    assert row["verdict"] == "equal" and row["difference"] > 1e-4
    assert row["reason"].startswith("ONNX's evaluator agrees with it, and differs from ONNX")
    assert main([*check, *harm("Sigmoid")]) == CHECK_FAILED


def test_opaque_tasks_are_skipped_with_the_reason(tmp_path: Path, capfd: Captured) -> None:
    assert main([*words(tmp_path, counted()), "--tasks", "--devices", CPU, "--json"]) == DONE
    found = document(capfd)
    skipped = [row["reason"] for row in found["tasks"] if row["verdict"] == "skipped"]
    assert skipped and all("only ONNX Runtime runs it: the shape of" in text for text in skipped)
    assert found["counts"]["equal"] == len(found["tasks"]) - len(skipped) > 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--tasks", "--devices", "cpu:4000"], CANNOT, "core 4000"),
        (["--tasks", "--devices", "cpu:x"], WRONG_USAGE, "cpu:0-3"),
        (["--tasks", "--devices", f"{CPU}/harmd"], CANNOT, "harmd"),
        (["--tasks", "--devices", "null:0"], WRONG_USAGE, "computes nothing"),
        (["--tasks", "--plan", "none.json"], CANNOT, "none.json"),
        (["--tasks", "--inputs", "none.npz"], CANNOT, "none.npz"),
        (["--tasks", "--probe", "smal"], WRONG_USAGE, "--probe"),
        (["--all"], WRONG_USAGE, "add --tasks"),
    ],
)
def test_an_error_is_one_line_with_an_exit_code(
    options: list[str], code: int, message: str, tmp_path: Path, capfd: Captured
) -> None:
    assert main([*words(tmp_path), *options]) == code
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("coexec: ") and message in line


@pytest.mark.parametrize("mode", [[], ["--tasks"]])
def test_a_file_that_is_no_model_is_an_error(
    mode: list[str], tmp_path: Path, capfd: Captured
) -> None:
    check = [*words(tmp_path), *mode, "--devices", CPU, "--planner", "single"]
    (tmp_path / "model.onnx").write_text("no model")
    assert main(check) == CANNOT
    (line,) = capfd.readouterr().err.splitlines()
    assert "is not an ONNX model" in line
