"""`coexec check`: the plan, every task, and the engine of another package that computes wrongly."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import coexec
from coexec.cli.checks import judged_by
from coexec.cli.exits import CANNOT, CHECK_FAILED, DONE
from coexec.errors import DegradedWarning, ExecutionError
from coexec.graph.graph import Graph, Piece, Tensor
from coexec.hardware.hardware import Place
from coexec.model.difference import tolerance_of
from coexec.model.load import load
from coexec.plan.plan import Plan, Provenance
from coexec.selection.plan_files import text_of
from tests.cli.conftest import CPU, TWO, CommandLine
from tests.helpers.engine_packages import installed_package
from tests.helpers.graphs import halves
from tests.helpers.small_models import branches, from_nodes, tensor_info
from tests.model.test_opaque import counted

HARMED = f"{TWO.split(',')[-1]}/harmed"
PLAN = ("check", "MODEL", "--devices", HARMED, "--planner", "single")
TASKS = ("check", "MODEL", "--tasks", "--devices", HARMED)


@pytest.fixture(autouse=True)
def package() -> Iterator[None]:
    """Installs the package with the engine "harmed"."""
    with installed_package("harmed"):
        yield


def harm(operator: str, how: str = "one more") -> tuple[str, ...]:
    return "--engine", f"harmed.operator={operator}", "--engine", f"harmed.how={how}"


def alone(cli: CommandLine, operator: str, kind: int = TensorProto.FLOAT) -> str:
    """A model of one operator."""
    ends = tensor_info("x", [64], kind), tensor_info("y", [64], kind)
    nodes = [helper.make_node(operator, ["x"], ["y"], "task")]
    return cli.save(from_nodes(nodes, [ends[0]], [ends[1]]), "alone.onnx")


def test_the_outputs_of_a_plan_are_judged_as_by_the_option_check(cli: CommandLine) -> None:
    assert "equal to ONNX Runtime within 1e-04" in cli(*PLAN)
    found = cli.json(*PLAN, *harm("MaxPool"), code=CHECK_FAILED)
    assert found["error"]["kind"] == "CheckError" and found["differences"]["y"] > 1e-2


def test_a_refusal_names_the_command_that_shows_it(cli: CommandLine) -> None:
    """The engine is wrong for inputs of zeros alone."""
    check = (*PLAN, *harm("Conv", "zeros"))
    with (
        pytest.warns(DegradedWarning, match=r"with zeros \(coexec check --probe zeros\), output"),
        coexec.InferenceSession(
            cli.model,
            devices=[HARMED],
            planner="single",
            cache=cli.folder / "cache",
            engine_options={"harmed": {"operator": "Conv", "how": "zeros"}},
        ),
    ):
        pass
    cli(*check)
    cli(*check, "--probe", "zeros", code=CHECK_FAILED)
    found = cli.json(*check, "--probe", "zeros", "--tasks", code=CHECK_FAILED)
    assert found["counts"]["differs"] == 1 and found["first"]["task"] == "stem"


@pytest.mark.parametrize("number", [np.nan, 1e6])
def test_inputs_that_no_plan_answers_are_not_judged(number: float, cli: CommandLine) -> None:
    x = np.ones((1, 3, 20, 20), np.float32)
    x[0, 1, 2, 3] = number
    np.savez(cli.folder / "x.npz", x=x)
    printed = cli(*PLAN, *harm("MaxPool"), "--inputs", "FOLDER/x.npz")
    assert "a session lets ONNX Runtime answer" in printed


def test_tasks_are_compared_on_every_named_device(cli: CommandLine) -> None:
    found = cli.json("check", "MODEL", "--tasks", "--devices", f"{CPU},{CPU}/harmed")
    tasks = [task.name for task in load(branches()).graph.tasks]
    places = [f"{CPU}/onnxruntime", f"{CPU}/harmed"]
    pairs = [(row["task"], row["place"]) for row in found["tasks"]]
    assert pairs == [(task, place) for task in tasks for place in places]
    assert found["counts"] == {"equal": 2 * len(tasks)} and found["first"] is None
    rows = cli("check", "MODEL", "--tasks", "--all", "--devices", CPU).splitlines()
    assert [row.split()[0] for row in rows[1 : len(tasks) + 1]] == tasks


def test_the_first_task_that_differs_is_named(cli: CommandLine) -> None:
    found = cli.json(*TASKS, *harm("MaxPool"), code=CHECK_FAILED)
    assert found["counts"] == {"equal": len(found["tasks"]) - 1, "differs": 1}
    first = found["first"]
    assert (first["task"], first["operators"], first["place"]) == ("pool", "MaxPool", HARMED)
    assert first["output"] == "pool" and first["index"] == [0, 47, 9, 9]
    assert first["value"] == pytest.approx(first["expected"] + 1)
    assert first["elements"] == 1 and first["numbers_lost"] == 0
    assert any("= MaxPool(joined)" in line for line in first["module"])
    printed, error = cli.both(*TASKS, *harm("MaxPool"), code=CHECK_FAILED)
    for part in ("differs: pool (MaxPool) on", "at [0, 47, 9, 9]: ", "= MaxPool(joined)"):
        assert part in printed
    assert error.startswith("coexec: 1 of ") and "the first is 'pool' (MaxPool)" in error
    printed = cli(*TASKS, *harm("MaxPool", "NaN"), code=CHECK_FAILED)
    assert "differs: pool (MaxPool)" in printed and ": nan, in" in printed
    assert "output pool: 1 elements have other NaN or infinity" in printed


@pytest.mark.parametrize(
    ("how", "code", "verdict", "reason"),
    [
        ("refused", DONE, "refused", "there is no Concat here"),
        ("fails", CANNOT, "failed", "made to fail"),
        ("raises", CANNOT, "failed", "KeyError: 'made to raise'"),
    ],
)
def test_a_task_that_does_not_run_is_listed_with_the_reason(
    how: str, code: int, verdict: str, reason: str, cli: CommandLine
) -> None:
    rows = cli(*TASKS, *harm("Concat", how), code=code).splitlines()
    row = next(row for row in rows if row.strip().startswith(verdict))
    assert reason in row and row.split()[1] == "1"


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
    places = (Place(CPU, "onnxruntime"), Place(HARMED.split("/")[0], "harmed"))
    pieces = dict(zip(places, (tuple(first), tuple(second)), strict=True))
    return Plan.of_places(graph.fingerprint, pieces, Provenance("by hand"))


@pytest.mark.skipif("," not in TWO, reason="one core")
def test_pieces_of_a_plan_are_compared_in_their_region(cli: CommandLine) -> None:
    graph = load(branches(), name="model").graph
    (cli.folder / "plan.json").write_text(text_of(in_halves(graph), graph, {}))
    check = ("check", "MODEL", "--tasks", "--plan", "FOLDER/plan.json")
    assert {row["region"] for row in cli.json(*check)["tasks"]} > {None}
    found = cli.json(*check, *harm("MaxPool"), code=CHECK_FAILED)
    assert found["counts"]["differs"] == 1
    assert found["first"]["region"] and found["first"]["place"] == HARMED
    assert found["first"]["index"] == [0, 47, 9, 9]


def test_a_segment_is_named_if_its_tasks_are_wrong_only_together(cli: CommandLine) -> None:
    check = (*PLAN, "--tasks")
    assert "compared and 1 segments of the plan, by" in cli(*check)
    check += harm("Concat", "together")
    found = cli.json(*check, code=CHECK_FAILED)
    assert found["counts"] == {"equal": len(found["tasks"])}
    assert [row["verdict"] for row in found["segments"]] == ["differs"]
    assert found["first"]["operators"] == f"{len(found['tasks'])} tasks"
    line = cli.refused(*check, code=CHECK_FAILED)
    assert "no task differs from ONNX Runtime by itself, but 1 of 1" in line


def test_an_engine_is_not_wrong_where_only_onnx_runtime_is(cli: CommandLine) -> None:
    """Its Sigmoid is an approximation, whose error is large beside very small results."""
    np.savez(cli.folder / "x.npz", x=np.linspace(-16, -12, 64, dtype=np.float32))
    check = ("check", alone(cli, "Sigmoid"), *TASKS[2:], "--inputs", "FOLDER/x.npz")
    (row,) = cli.json(*check)["tasks"]
    assert row["verdict"] == "equal" and row["difference"] > 1e-4
    assert row["reason"].startswith("ONNX's evaluator agrees with it, and differs from ONNX")
    cli(*check, *harm("Sigmoid"), code=CHECK_FAILED)


def test_other_float_values_need_a_float_input(cli: CommandLine) -> None:
    path = alone(cli, "Abs", TensorProto.INT64)
    line = cli.refused("check", path, "--devices", CPU, "--tasks", "--probe", "zeros")
    assert "--probe zeros" in line and "has no float input" in line


def test_opaque_tasks_are_skipped_with_the_reason(cli: CommandLine) -> None:
    onnx.save(counted(), str(cli.model))
    found = cli.json("check", "MODEL", "--tasks", "--devices", CPU)
    skipped = [row["reason"] for row in found["tasks"] if row["verdict"] == "skipped"]
    assert skipped and all("only ONNX Runtime runs it: the shape of" in text for text in skipped)
    assert found["counts"]["equal"] == len(found["tasks"]) - len(skipped) > 0


# --- What `--check` says of outputs of a pipeline


def judged(worst: float, own: float, kind: str = "float32") -> str:
    """The verdict on a model whose answers with and without optimisations differ by ``own``."""

    def reference(feeds: Any, *, optimised: bool = True) -> dict[str, np.ndarray]:
        return {"y": np.array([1.0, 0.5 if optimised else 0.5 + own], np.float64)}

    graph = SimpleNamespace(tensors={"y": Tensor("y", (2,), kind)}, tasks=())
    model: Any = SimpleNamespace(reference=reference, model=SimpleNamespace(graph=graph))
    return judged_by(worst, tolerance_of(model.model.graph), model, {})


@pytest.mark.parametrize(
    ("worst", "own", "kind", "verdict"),
    [
        (9e-5, 0.0, "float32", "equal to ONNX Runtime within 1e-04 of the largest value: 9.0e-05"),
        (2**-11, 0.0, "float16", "within 1e-02"),  # the last of 16 bits is rounded otherwise
        (2**-11, 0.0, "bfloat16", "within 1e-02"),
        (4e-3, 3e-3, "float32", "by 4.0e-03"),  # it amplifies rounding
        (4e-3, 3e-3, "float32", "differ by 3.0e-03, as this model amplifies rounding"),
    ],
)
def test_rounding_is_no_error(worst: float, own: float, kind: str, verdict: str) -> None:
    assert verdict in judged(worst, own, kind)


@pytest.mark.parametrize(
    ("worst", "own", "message"),
    [
        (4e-3, 0.0, r"by 0\.004 of .* 1e-04 is allowed, and its own"),
        (4e-3, 1e-5, r"by 0\.004 of .* 1e-04 is allowed, and its own"),
        (4e-3, 1.9e-3, r"by 0\.004 of .* 1e-04 is allowed, and its own"),
        (4e-3, float("inf"), r"by 0\.004 of .* 1e-04 is allowed, and its own"),
        (1.5e-4, 9e-5, r"by 0\.00015 of .* 1e-04 is allowed, and its own"),  # amplifies nothing
        (0.5, 0.5, "expected of random operators"),  # two runs that draw numbers
    ],
)
def test_more_than_rounding_is_an_error(worst: float, own: float, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        judged(worst, own)
