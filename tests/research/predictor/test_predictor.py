"""Unit times are learnt, kept as text, and scale what was measured to parts of tasks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from coexec.costs.base import Prediction, Unmeasured
from coexec.costs.scaled import surest
from coexec.costs.table import CostTable, Reading
from coexec.graph.graph import Graph, Operator, Piece, Task, Tensor
from coexec.graph.region import Region
from coexec.graph.rules import operator_macs
from coexec.graph.task_samples import TaskParts
from coexec.hardware.hardware import Place
from coexec.research.predictor.fitting import fitted, non_negative
from coexec.research.predictor.latency import (
    KernelUnits,
    LatencyPredictor,
    from_json,
    part_of_task,
    to_json,
    train,
)
from coexec.research.predictor.workloads import Workload, plain_workload
from tests.helpers.onnx_models import model_of
from tests.helpers.operator_cases import Case

AT = Place("cpu:0", "test")


def conv(height: int = 12, channels: int = 32, stride: int = 1) -> tuple[Graph, Task]:
    weights = np.zeros((channels, 16, 3, 3), np.float32)
    attributes = {"pads": [1, 1, 1, 1], "strides": [stride] * 2}
    graph = model_of(Case("Conv", ((1, 16, height, 10), weights), attributes)).graph
    return graph, graph.tasks[0]


def by_row_blocks(
    operators: Sequence[Operator], tensors: Mapping[str, Tensor], compiled: str
) -> Workload:
    """A kernel that computes four rows at a time."""
    rows = tensors[operators[-1].outputs[0]].shape[2]
    return Workload("rows", {"launch": 1.0, "blocks": float(math.ceil(rows / 4))})


ROWS = LatencyPredictor(
    {"rows": KernelUnits({"launch": 1e-6, "blocks": 9e-6}, ("launch", "blocks"), 0.1)},
    by_row_blocks,
)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_signs_fit_better(seed: int) -> None:
    """Against the best of all subsets of terms that come out positive."""
    rng = np.random.default_rng(seed)
    rows, wanted = rng.normal(size=(12, 5)), rng.normal(size=12)
    best = float(wanted @ wanted)
    for chosen in product([False, True], repeat=5):
        if any(chosen):
            part = rows[:, list(chosen)]
            x = np.linalg.lstsq(part, wanted, rcond=None)[0]
            if x.min() >= 0:
                best = min(best, float(((part @ x - wanted) ** 2).sum()))
    found = non_negative(rows, wanted)
    assert found.min() >= 0
    assert float(((rows @ found - wanted) ** 2).sum()) == pytest.approx(best)


def test_disturbed_samples_do_not_move_unit_times() -> None:
    rng = np.random.default_rng(0)
    terms = rng.uniform(0, 1e6, (200, 3))
    seconds = terms @ [2e-9, 0.0, 5e-10]
    seconds[::8] *= 3
    assert fitted(terms.tolist(), seconds.tolist()) == pytest.approx(
        [2e-9, 0, 5e-10], rel=0.01, abs=1e-12
    )


def samples(count: int) -> list[tuple[Workload, float]]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        a, b = rng.uniform(1, 1e6, 2)
        found.append((Workload("kind", {"a": a, "b": b}), 3e-9 * a + 1e-6))
    return found


def test_what_is_learnt_survives_as_text() -> None:
    kinds = train([*samples(100), *samples(5)])
    assert from_json(to_json(kinds)) == kinds
    assert all(len(text) <= 500 for text in to_json(kinds).values())


def test_a_kind_with_few_samples_is_not_learnt() -> None:
    assert train(samples(19)) == {} and set(train(samples(20))) == {"kind"}


@pytest.mark.parametrize("text", ["{}", '{"error": 1}', "[1]", '{"error":"x","units_s":{}}', "x"])
def test_damaged_numbers_are_told(text: str) -> None:
    with pytest.raises(ValueError):
        from_json({"kind": text})


def test_workloads_of_another_version_are_not_predicted() -> None:
    units = KernelUnits({"a": 1.0}, ("a", "b"), 0.1)
    assert units.seconds(Workload("kind", {"a": 2.0, "b": 5.0})) == 2.0
    assert units.seconds(Workload("kind", {"a": 2.0})) is None
    assert units.seconds(Workload("kind", {"a": 2.0, "b": 5.0, "c": 0.0})) is None


def part(
    graph: Graph, task: Task, region: Region
) -> tuple[tuple[Operator, ...], Mapping[str, Tensor]]:
    found = part_of_task(TaskParts(graph, task), region)
    assert found is not None
    return found


def test_parts_are_operators_of_their_own_size() -> None:
    graph, task = conv(height=12, stride=2)
    whole = graph.output_of(task).whole
    (op,), tensors = part(graph, task, whole.with_axis(2, 0, 3))
    assert tensors[op.outputs[0]].shape == (1, 32, 3, 5)
    assert tensors[op.inputs[0]].shape == (1, 16, 6, 10)  # rows -1 to 5
    assert op.ints("pads", ()) == (1, 1, 0, 0)  # the last column of padding is never read
    (op,), tensors = part(graph, task, whole.with_axis(1, 8, 16))
    assert tensors[op.inputs[1]].shape == (8, 16, 3, 3)
    assert operator_macs(op, tensors) * 4 == task.macs
    assert part(graph, task, whole) == (task.operators, graph.tensors)
    outside = whole.with_axis(2, 0, 7)
    assert part_of_task(TaskParts(graph, task), outside) is None


def test_parts_are_known_of_operators_with_outputs_that_nobody_reads() -> None:
    graph, task = conv()
    (op,) = task.operators
    unread = replace(task, operators=(replace(op, outputs=(*op.outputs, "unread")),))
    region = graph.output_of(task).whole.with_axis(2, 0, 3)
    _, tensors = part(replace(graph, tasks=(unread,)), unread, region)
    assert tensors[op.outputs[0]].shape == (1, 32, 3, 10)


def table(task: Task, seconds: float, **words: object) -> CostTable:
    return CostTable({AT: {task.name: seconds}}, {AT: 2e-6}, **words)  # type: ignore[arg-type]


def test_a_part_takes_its_predicted_share_of_the_measured_whole() -> None:
    graph, task = conv(height=12)
    whole = graph.output_of(task).whole
    cost = table(task, 56e-6, predictors={AT: ROWS})  # twice as long as predicted
    for rows, seconds in ((12, 56e-6), (9, 56e-6), (8, 38e-6), (5, 38e-6), (4, 20e-6), (1, 20e-6)):
        part = whole.with_axis(2, 0, rows)
        assert cost.piece_s(graph, task, part, AT) == pytest.approx(seconds)


def test_measured_parts_win_over_predicted_ones() -> None:
    graph, task = conv(height=12)
    half = graph.output_of(task).whole.with_axis(2, 0, 6)
    other = graph.output_of(task).whole.with_axis(2, 6, 12)
    cost = table(task, 28e-6, predictors={AT: ROWS}, pieces_s={AT: {Piece(task.name, half): 1e-5}})
    assert cost.piece_s(graph, task, half, AT) == 1e-5
    assert cost.piece_s(graph, task, other, AT) == pytest.approx(19e-6)


def test_without_a_predictor_a_part_is_launched_and_takes_its_share_of_the_rest() -> None:
    graph, task = conv(height=12)
    quarter = graph.output_of(task).whole.with_axis(2, 0, 3)
    assert table(task, 42e-6).piece_s(graph, task, quarter, AT) == pytest.approx(12e-6)
    assert table(task, 1e-6).piece_s(graph, task, quarter, AT) == 1e-6  # less than a launch
    assert table(task, math.inf).piece_s(graph, task, quarter, AT) == math.inf


def test_a_part_takes_the_time_of_all_bytes_that_it_reads() -> None:
    graph, task = conv(height=12)
    whole = graph.output_of(task).whole
    weights_bytes, row_bytes = 4 * 32 * 16 * 3 * 3, 4 * 16 * 10
    reading = Reading(alone_s=1e-9, together_s=1.5e-9)
    cost = table(task, 42e-6, readings={AT: reading})
    all_bytes = weights_bytes + 12 * row_bytes
    rest_s = 40e-6 - all_bytes * reading.alone_s
    for part, read_bytes in (
        (whole.with_axis(2, 0, 6), weights_bytes + 7 * row_bytes),  # a row more for the window
        (whole.with_axis(1, 0, 16), weights_bytes // 2 + 12 * row_bytes),
    ):
        seconds = 2e-6 + rest_s / 2 + read_bytes * reading.together_s
        assert cost.piece_s(graph, task, part, AT) == pytest.approx(seconds)
    assert cost.piece_s(graph, task, whole, AT) == 42e-6
    # Reading takes no more than the whole task: its weights were in a cache.
    cached = table(task, 12e-6, readings={AT: replace(reading, together_s=1e-9)})
    rows = weights_bytes + 7 * row_bytes
    assert cached.piece_s(graph, task, whole.with_axis(2, 0, 6), AT) == pytest.approx(
        2e-6 + 10e-6 * rows / all_bytes
    )


def test_what_the_predictor_does_not_know_takes_its_share() -> None:
    graph, task = conv(height=12)
    quarter = graph.output_of(task).whole.with_axis(2, 0, 3)
    cost = table(task, 42e-6, predictors={AT: replace(ROWS, kinds={})})
    assert cost.piece_s(graph, task, quarter, AT) == pytest.approx(12e-6)


def test_the_surer_prediction_counts() -> None:
    graph, task = conv()
    unmeasured = Unmeasured(graph, task, "", "", 0.0, ())

    def say(uncertainty: float) -> Prediction:
        return Prediction(1.0, uncertainty)

    both = surest(lambda _: say(0.2), lambda _: None, lambda _: say(0.1))
    assert both(unmeasured) == say(0.1)
    assert surest(lambda _: None)(unmeasured) is None


def test_a_trained_place_predicts_tasks_of_other_sizes() -> None:
    """What takes time in proportion to its multiply-accumulates is learnt as such."""
    graphs = [conv(height, channels) for height in range(4, 16) for channels in (8, 24, 40)]
    taught = [
        (plain_workload(task.operators, graph.tensors), 1e-9 * task.macs + 5e-6)
        for graph, task in graphs
    ]
    predictor = LatencyPredictor(
        train(taught), lambda ops, tensors, _: plain_workload(ops, tensors)
    )
    graph, task = conv(height=31, channels=64)
    said = predictor(Unmeasured(graph, task, "", "", 0.0, ()))
    assert said is not None and said.seconds == pytest.approx(1e-9 * task.macs + 5e-6, rel=0.01)
