"""Simplified models compute what they did before, and have fewer operators."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from coexec.model.basic import optimised
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from tests.helpers.small_models import from_nodes, tensor_info


def kinds_after(model: onnx.ModelProto) -> Counter[str]:
    """Operators of the simplified model, after making sure that it computes the same."""
    loaded = load(model, check=True)
    feeds = random_inputs(loaded.graph)
    expected = plain_session(model).run(None, feeds)
    found = plain_session(ir.to_proto(loaded.source)).run(None, feeds)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and worst_difference(a, b) < 1e-6
    return Counter(node.op_type for node in loaded.source.graph)


def joined(*readers: str, keep: bool = False) -> onnx.ModelProto:
    """Two convolutions joined by a Concat that ``readers`` read, each an output of its own."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((6, 3, 1, 1)).astype(np.float32) for name in ("wa", "wb")}
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], "a"),
        helper.make_node("Conv", ["x", "wb"], ["b"], "b"),
        helper.make_node("Concat", ["a", "b"], ["joined"], "concat", axis=1),
    ]
    outputs = [tensor_info("joined", [1, 12, 7, 7])] if keep else []
    for i, reader in enumerate(readers):
        nodes.append(helper.make_node(reader, ["joined"], [f"r{i}"], f"r{i}"))
        nodes.append(helper.make_node("GlobalMaxPool", [f"r{i}"], [f"y{i}"], f"y{i}"))
        outputs.append(tensor_info(f"y{i}", [1, 12, 1, 1]))
    return from_nodes(nodes, [tensor_info("x", [1, 3, 7, 7])], outputs, weights)


def test_activations_move_in_front_of_a_concat() -> None:
    graph = load(joined("Relu", "Relu")).graph
    assert [t.kind for t in graph.tasks][:3] == ["Conv+Relu", "Conv+Relu", "Concat"]
    assert kinds_after(joined("Relu", "Relu"))["Relu"] == 2


@pytest.mark.parametrize("model", [joined("Relu", "Sigmoid"), joined("Relu", keep=True)])
def test_activations_stay_behind_a_concat_that_others_read(model: onnx.ModelProto) -> None:
    kinds_after(model)
    assert "Conv+Relu" not in [t.kind for t in load(model).graph.tasks]


def swish(numbers: dict[str, float], opset: int = 17) -> onnx.ModelProto:
    """x * Clip(x + 3, 0, 6) / 6, behind a Relu, with other numbers in place of some."""
    given = {"three": 3.0, "zero": 0.0, "six": 6.0, "last": 6.0} | numbers
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Add", ["n", "three"], ["a"]),
        helper.make_node("Clip", ["a", "zero", "six"], ["c"]),
        helper.make_node("Mul", ["n", "c"], ["m"]),
        helper.make_node("Div", ["m", "last"], ["y"]),
    ]
    weights = {name: np.array(number, np.float32) for name, number in given.items()}
    ends = tensor_info("x", [2, 5]), tensor_info("y", [2, 5])
    return from_nodes(nodes, [ends[0]], [ends[1]], weights, opset)


def test_hard_swish_with_its_own_numbers_alone() -> None:
    assert kinds_after(swish({})) == {"Neg": 1, "HardSwish": 1}
    assert kinds_after(swish({}, opset=13))["HardSwish"] == 0
    for name, number in (("three", 3 + 1e-5), ("six", 6 - 1e-5), ("last", 6 + 1e-5)):
        assert kinds_after(swish({name: number}))["HardSwish"] == 0


def test_a_gate_is_a_hard_sigmoid() -> None:
    proto = swish({})
    del proto.graph.node[3]
    proto.graph.node[3].input[0] = "c"
    assert kinds_after(proto) == {"Neg": 1, "HardSigmoid": 1}
    proto.graph.node[3].output[0] = "gate"
    proto.graph.node.append(helper.make_node("Mul", ["gate", "n"], ["y"]))
    assert kinds_after(proto) == {"Neg": 1, "HardSwish": 1}


def channels_last() -> onnx.ModelProto:
    """Two scaled convolutions between Transposes, as TensorFlow's exports have them."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["a", "w"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 3, 1]),
        helper.make_node("Mul", ["c", "s"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Add", ["e", "map"], ["f"]),
        helper.make_node("Transpose", ["f"], ["g"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["g", "w"], ["h"]),
        helper.make_node("Transpose", ["h"], ["y"], perm=[0, 2, 3, 1]),
    ]
    sizes = {"w": (8, 8, 3, 3), "s": (8,), "map": (1, 8, 8, 8)}
    weights = {n: rng.standard_normal(size).astype(np.float32) for n, size in sizes.items()}
    ends = tensor_info("x", [1, 10, 10, 8]), tensor_info("y", [1, 6, 6, 8])
    return from_nodes(nodes, [ends[0]], [ends[1]], weights)


def test_weights_that_the_optimizer_transposes_in_place() -> None:
    """``map`` keeps its name and its shape, and has its numbers in another order."""
    kinds = kinds_after(channels_last())
    assert kinds["Transpose"] == 2 and kinds["Conv"] == 2


def test_weights_that_stay_are_not_copied() -> None:
    weights = {"w": np.ones((64, 64), np.float32)}
    ends = tensor_info("x", [1, 64]), tensor_info("y", [1, 64])
    proto = from_nodes(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], *([e] for e in ends), weights
    )
    given = ir.from_proto(proto)
    before = given.graph.initializers["w"].const_value
    assert optimised(given, merge=True).graph.initializers["w"].const_value is before


def test_the_weights_of_a_branch_that_is_never_taken_vanish() -> None:
    def branch(name: str, weight: str) -> onnx.GraphProto:
        add = helper.make_node("Add", ["x", weight], [name])
        return helper.make_graph([add], name, [], [tensor_info(name, [512])])

    branches = {"then_branch": branch("t", "w"), "else_branch": branch("e", "v")}
    nodes = [
        helper.make_node("Equal", ["one", "one"], ["always"]),
        helper.make_node("If", ["always"], ["h"], **branches),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    weights = {
        "one": np.array(1, np.int64),
        "w": np.ones(512, np.float32),
        "v": np.zeros(512, np.float32),
    }
    ends = tensor_info("x", [512]), tensor_info("y", [512])
    graph = load(from_nodes(nodes, [ends[0]], [ends[1]], weights), check=True).source.graph
    assert [node.op_type for node in graph] == ["Add", "Relu"]
    assert list(graph.initializers) == ["w"]
