"""A device whose engine does not run a few tasks of a model: ONNX Runtime on its cores does."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from coexec.engines.base import Processor
from coexec.engines.registry import Driven
from coexec.errors import InfeasibleError
from coexec.selection.chooser import Chooser
from coexec.selection.planning_context import PlanningContext
from coexec.session import InferenceSession
from coexec.settings import Settings
from tests.helpers.engine_packages import installed_package
from tests.helpers.small_models import from_nodes, tensor_info
from tests.selection.test_precision import BF16, CPU, ROUGH, RULES, chain, in_turn, row_of

WITH_ERF = chain("Neg", "Erf", "Abs")
"""Six tasks; the engine "rough" runs five of them."""
MOSTLY_ERF = from_nodes(
    [helper.make_node("Neg", ["x"], ["m0"])]
    + [helper.make_node("Erf", [f"m{number}"], [f"m{number + 1}"]) for number in range(3)],
    [tensor_info("x", [2, 8])],
    [tensor_info("m3", [2, 8])],
)
BOTH = chain("Neg", "Erf", "Tanh", "Abs")
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU cores with ONNX Runtime and "rough"."""
    by = {
        "onnxruntime": Processor("cpu", "cores"),
        "rough": Processor("cpu", "cores", precisions=("float32", "bf16")),
    }
    monkeypatch.setattr(
        "coexec.selection.configurations.processors", lambda kind=None: [Driven("cpu", "cores", by)]
    )
    with installed_package("rough"):
        yield


def chosen(
    model: Any, cache: Path, gains: Sequence[float] = (1.0, 2.0), **settings: Any
) -> Chooser:
    """After a choice, with the gains of the races over ONNX Runtime's own session: by default of
    what coexec makes of the model, and of the engine "rough"."""
    words = {"devices": [CPU], "rules": RULES} | settings
    chooser = Chooser(model, Settings(cache=cache, **words), compete=in_turn(gains, []))
    chooser.make()
    return chooser


def kinds(chooser: Chooser) -> dict[str, list[str]]:
    """The kinds of the tasks of the plan, by device."""
    assert chooser.known is not None
    found: dict[str, list[str]] = {}
    for piece, place in chooser.known.plan.place_of.items():
        found.setdefault(str(place), []).append(chooser.known.graph.task[piece.task].kind)
    return found


def test_the_plan_has_the_task_in_onnx_runtime(tmp_path: Path) -> None:
    chooser = chosen(WITH_ERF, tmp_path)
    assert chooser.known is not None and chooser.decision is not None
    assert str(chooser.decision.taken) == f"{ROUGH} (single, with onnxruntime)"
    by_place = kinds(chooser)
    assert by_place.keys() == {ROUGH, f"{CPU}/onnxruntime"}
    assert by_place[f"{CPU}/onnxruntime"] == ["Erf"] and len(by_place[ROUGH]) == 5
    again = Chooser(WITH_ERF, Settings([CPU], rules=RULES, cache=tmp_path))
    assert again.known is not None and kinds(again) == by_place
    plan = chooser.known.plan
    with InferenceSession(WITH_ERF, plan=plan, strict=True, cache=tmp_path) as session:
        (output,) = session.run(None, {"x": X})
    with InferenceSession(WITH_ERF, devices=[CPU], planner="single", cache=tmp_path) as base:
        np.testing.assert_allclose(output, base.run(None, {"x": X})[0], rtol=1e-5, atol=1e-6)


def test_a_device_that_the_user_names_computes_all_or_nothing(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match=r"does not run 1 of the 6 tasks.*add a CPU device"):
        chosen(WITH_ERF, tmp_path, devices=[ROUGH])
    with pytest.raises(InfeasibleError, match="does not run 1 of the 6 tasks"):
        chosen(WITH_ERF, tmp_path, devices=[ROUGH], precision="bf16")


def test_beside_onnx_runtime_it_is_completed(tmp_path: Path) -> None:
    """As the message says that names a task which the device does not run."""
    chooser = chosen(WITH_ERF, tmp_path, [2.0] * 9, devices=[ROUGH, CPU])
    assert chooser.decision is not None
    row = row_of(chooser.decision, ROUGH)
    assert row.is_able and str(row) == f"{ROUGH} (single, with onnxruntime)"
    low = chosen(WITH_ERF, tmp_path, [2.0] * 9, devices=[ROUGH, CPU], precision="bf16")
    assert low.decision is not None
    assert row_of(low.decision, BF16).precision == "5 of 6 tasks in bf16"


def test_in_throughput_each_device_is_completed(tmp_path: Path) -> None:
    settings = Settings([CPU], rules=RULES, cache=tmp_path, mode="throughput")
    decision = Chooser(WITH_ERF, settings).make().decision
    assert decision is not None
    assert f"{ROUGH} (single, with onnxruntime)" in map(str, decision.candidates)


def test_engines_do_not_take_turns_for_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = PlanningContext(WITH_ERF, Settings([ROUGH], cache=tmp_path))
    assert len(work.completed()[0].devices) == 2
    monkeypatch.setattr("coexec.selection.planning_context._MOST_TURNS", 2)
    with pytest.raises(InfeasibleError, match="does not run 1 of the 6 tasks"):
        work.completed()


def test_an_engine_that_runs_less_than_half_of_the_tasks_is_left_out(tmp_path: Path) -> None:
    chooser = chosen(MOSTLY_ERF, tmp_path, [1.0])
    assert chooser.decision is not None
    assert "does not run 3 of the 4 tasks" in row_of(chooser.decision, ROUGH).reason


def test_what_is_pinned_is_not_moved(tmp_path: Path) -> None:
    work = PlanningContext(WITH_ERF, Settings([ROUGH], pins={"*": CPU}, cache=tmp_path))
    with pytest.raises(InfeasibleError, match="Erf"):
        work.completed()


def test_with_a_lower_precision_each_task_is_where_it_can_be(tmp_path: Path) -> None:
    chooser = chosen(BOTH, tmp_path, [4.0, 1.0, 2.0, 3.0], precision="bf16")
    assert chooser.decision is not None
    row = row_of(chooser.decision, BF16)
    assert row.precision == "5 of 7 tasks in bf16"
    assert chooser.decision.taken.key == row.key
    by_place = kinds(chooser)
    assert by_place[f"{CPU}/onnxruntime"] == ["Erf"] and by_place[ROUGH] == ["MatMul+Tanh"]


def test_a_lower_precision_is_offered_with_onnx_runtime_beside_it(tmp_path: Path) -> None:
    chooser = chosen(WITH_ERF, tmp_path, [1.0, 2.0, 3.0])
    offered = chooser.make_offer()
    assert offered is not None and offered.offer is not None
    assert offered.offer.device == BF16 and 0 < offered.offer.error < 0.02
