"""Costs that are remembered are those of the model that was asked."""

from itertools import product

import pytest
from onnx import helper

from coexec.costs.base import CostModel
from coexec.costs.observed import Observation, Observed
from coexec.costs.pinned import Pinned
from coexec.costs.remembered import RememberedCosts
from coexec.costs.table import CostTable
from coexec.graph.graph import Piece
from coexec.graph.task_samples import GraphParts
from coexec.hardware.hardware import Link, Place
from coexec.research.predictor.latency import KernelUnits, LatencyPredictor
from coexec.research.predictor.workloads import plain_workload
from tests.helpers.onnx_models import direct, tensor

A, B = Place("cpu:0", "test"), Place("cpu:1", "test")
GRAPH = direct(
    [
        helper.make_node("MaxPool", [a], [b], name=b, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        for a, b in ("xp", "pq", "qr")
    ],
    [tensor("x", (1, 8, 12, 12))],
    ["r"],
    {},
).graph
HALF = GRAPH.output_of(GRAPH.tasks[0]).whole.with_axis(2, 0, 6)
KINDS = {
    "MaxPool": KernelUnits(
        {"launch": 5e-6, "windows": 1e-9},
        tuple(plain_workload(GRAPH.tasks[0].operators, GRAPH.tensors).terms),
        0.1,
    )
}
TABLE = CostTable(
    {p: {t.name: (2 + i) * 1e-5 for i, t in enumerate(GRAPH.tasks)} for p in (A, B)},
    {A: 2e-6},
    pieces_s={A: {Piece(GRAPH.tasks[1].name, HALF): 1.5e-5}},
    predictors={A: LatencyPredictor(KINDS, lambda ops, tensors, _: plain_workload(ops, tensors))},
)
SEEN = Observation(A, (GRAPH.tasks[0].name,), 1e-5, 3e-5)


@pytest.mark.parametrize(
    "cost",
    [
        TABLE,
        Observed(TABLE).after([SEEN]),
        Pinned(TABLE, {GRAPH.tasks[2].name: frozenset({B})}),
    ],
)
def test_what_is_remembered_is_what_the_model_says(cost: CostModel) -> None:
    """Also of tasks that are alike, one of which was measured in part, observed or pinned."""
    remembered = RememberedCosts(cost, GraphParts(GRAPH))
    regions = [HALF, HALF.with_axis(2, 6, 12), HALF.with_axis(2, 0, 12), HALF.with_axis(1, 0, 4)]
    for task, region, place, _ in product(GRAPH.tasks, regions, (A, B), range(2)):
        plain_s = cost.piece_s(GRAPH, task, region, place)
        assert remembered.piece_s(GRAPH, task, region, place) == plain_s
    assert remembered.launch_s(A) == 2e-6 and remembered.stitch_s("t", 100, 0, A) == 0.0
    assert remembered.transfer_s("t", 100, Link(A, B, 0.0, 50.0)) == 2.0
