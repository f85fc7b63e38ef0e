"""Nodes of a given model, and the tasks that do their work."""

import numpy as np
from onnx import ModelProto, helper

from coexec.model.load import load
from coexec.model.tasks_of_nodes import tasks_of_nodes
from tests.helpers.small_models import branches, from_nodes, tensor_info

ONES = np.ones(4, np.float32)
KERNEL = np.ones((4, 4, 3, 3), np.float32)


def by_node(model: ModelProto) -> dict[str, str | None]:
    tasks = tasks_of_nodes(model, load(model).graph)
    return dict(zip((node.name for node in model.graph.node), tasks, strict=True))


def test_every_node_of_a_task_has_it() -> None:
    model = branches()
    graph = load(model).graph
    inside = {
        name: task.name for task in graph.tasks for op in task.operators for name in op.outputs
    }
    tasks = tasks_of_nodes(model, graph)
    assert tasks == [inside[node.output[0]] for node in model.graph.node]


def test_a_node_that_was_folded_has_the_task_of_its_reader() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("Identity", ["r"], ["i"], "identity"),
        helper.make_node("MaxPool", ["i"], ["y"], "pool", kernel_shape=[2, 2]),
    ]
    info = tensor_info("x", [1, 4, 8, 8]), tensor_info("y", [1, 4, 7, 7])
    tasks = by_node(from_nodes(nodes, [info[0]], [info[1]], {"w": KERNEL, "s": ONES}))
    assert tasks["conv"] == tasks["norm"] == tasks["relu"] != tasks["pool"]
    assert tasks["identity"] == tasks["pool"]


def test_a_node_that_several_tasks_replace_has_none() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "shape"),
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Reshape", ["r", "s"], ["a"], "one"),
        helper.make_node("Reshape", ["x", "s"], ["b"], "two"),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", kernel_shape=[2, 2]),
        helper.make_node("MaxPool", ["b"], ["q"], "second pool", kernel_shape=[3, 3]),
    ]
    outputs = [tensor_info("p", [1, 4, 7, 7]), tensor_info("q", [1, 4, 6, 6])]
    tasks = by_node(from_nodes(nodes, [tensor_info("x", [1, 4, 8, 8])], outputs))
    assert tasks["shape"] is None and None not in (tasks["relu"], tasks["pool"])
    assert None not in (tasks["one"], tasks["two"], tasks["second pool"])


def test_nodes_in_any_order_have_their_tasks() -> None:
    model = branches()
    expected = by_node(model)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert by_node(model) == expected


def test_a_node_that_a_body_reads_has_the_task_of_its_owner() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["n", "n"], ["t"], "inner")], "body", [], [tensor_info("t", [4])]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Neg", ["r"], ["n"], "neg"),
        helper.make_node("If", ["flag"], ["y"], "if", then_branch=body, else_branch=body),
        helper.make_node("Abs", ["x"], ["z"], "abs"),
    ]
    inputs = [tensor_info("x", [4]), tensor_info("flag", [], 9)]
    outputs = [tensor_info("y", [4]), tensor_info("z", [4])]
    tasks = by_node(from_nodes(nodes, inputs, outputs))
    assert all(tasks.values()) and len(set(tasks.values())) > 1


def test_a_name_of_a_body_may_be_a_name_of_the_outer_graph() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["r", "r"], ["t"], "inner")], "body", [], [tensor_info("t", [4])]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("If", ["flag"], ["y"], "if", then_branch=body, else_branch=body),
        helper.make_node("Abs", ["y"], ["t"], "abs"),
    ]
    model = from_nodes(
        nodes, [tensor_info("x", [4]), tensor_info("flag", [], 9)], [tensor_info("t", [4])]
    )
    assert by_node(model)["abs"] is not None
