"""Plans that divide tasks in ways that cannot be are refused, and the task is named."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from onnx import helper

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Piece
from coexec.graph.receptive import needed_inputs
from coexec.plan.plan import Plan, verify_plan
from tests.helpers.graphs import hand_made
from tests.helpers.onnx_models import direct, tensor
from tests.planners.test_codl import chain_model, system

WHERE = system(2)


def planned(graph: Graph, own: Mapping[str, Sequence[Sequence[Piece]]]) -> Plan:
    """Some tasks as given, by device; the others whole on the first device."""
    order: list[list[Piece]] = [[], []]
    for task in graph.tasks:
        given = own.get(task.name, ([graph.whole_piece(task)], []))
        for device, pieces in zip(order, given, strict=True):
            device += pieces
    return hand_made(graph, dict(zip(WHERE.names, order, strict=True)))


def rows(graph: Graph, task: str, start: int, stop: int, axis: int = 2) -> Piece:
    return Piece(task, graph.output_of(graph.task[task]).whole.with_axis(axis, start, stop))


def refused(graph: Graph, plan: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        verify_plan(plan, graph, WHERE)


def test_a_share_of_nothing() -> None:
    graph = chain_model(2, size=8)
    parts = [rows(graph, "t0", 0, 8)], [rows(graph, "t0", 8, 8)]
    refused(graph, planned(graph, {"t0": parts}), r"computes \[0:1, 0:16, 8:8, 0:8\] of 't0'")


@pytest.mark.parametrize(("start", "stop"), [(-2, 4), (4, 10), (6, 4)])
def test_a_ratio_that_is_none(start: int, stop: int) -> None:
    graph = chain_model(2, size=8)
    parts = [rows(graph, "t0", 0, 8)], [rows(graph, "t0", start, stop)]
    refused(graph, planned(graph, {"t0": parts}), re.escape(f"{start}:{stop}, 0:8] of 't0'"))


def test_a_hole_between_shares() -> None:
    graph = chain_model(2, size=8)
    parts = [rows(graph, "t0", 0, 3)], [rows(graph, "t0", 4, 8)]
    refused(graph, planned(graph, {"t0": parts}), r"leaves out \[0:1, 0:16, 3:4, 0:8\].* of 't0'")


def test_a_chain_over_a_branch() -> None:
    """A chain computes of its inner tasks what its own end needs, another reader needs more."""
    weights = {"w": np.ones((4, 4, 1, 1), np.float32)}
    nodes = [
        helper.make_node("Conv", [a, "w"], [b], b, strides=[s, s])
        for a, b, s in (("x", "a", 1), ("a", "b", 2), ("a", "c", 1))
    ]
    graph = direct(nodes, [tensor("x", (1, 4, 8, 8))], ["b", "c"], weights).graph
    chain = []
    for start, stop in ((0, 2), (2, 4)):
        end = rows(graph, "b", start, stop)
        chain.append((Piece("a", needed_inputs(graph, graph.task["b"], end.region)["a"]), end))
    own = {"a": [[first] for first, _ in chain], "b": [[end] for _, end in chain]}
    refused(graph, planned(graph, own), "leaves out .* of the output of 'a'")


@pytest.mark.parametrize("first", [True, False])
def test_an_operator_that_cannot_be_divided(first: bool) -> None:
    """Wherever it stands in the model."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "a"),
        helper.make_node("Softmax", ["a"], ["b"], "b", axis=2),
    ]
    nodes += [helper.make_node("Relu", ["b"], ["c"], "c")] if first else []
    graph = direct(nodes, [tensor("x", (1, 4, 8, 8))], [nodes[-1].output[0]], {}).graph
    name = next(task.name for task in graph.tasks if "Softmax" in task.kind)
    parts = [rows(graph, name, 0, 4)], [rows(graph, name, 4, 8)]
    refused(graph, planned(graph, {name: parts}), rf"task '{name}' .* axis 2 is cut")
