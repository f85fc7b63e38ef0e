"""Pads that fold into pools and activations in front of a Concat compute what they did before."""

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.model.check import plain_session, worst_difference
from coexec.model.load import load, random_inputs
from tests.helpers.small_models import from_nodes, tensor_info


def padded_pool(
    pool: str,
    margins: list[int],
    filling: float,
    kernel: int,
    stride: int = 2,
    size: int = 9,
    mode: str = "constant",
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> Relu -> Pad by (top, left, bottom, right) -> pool -> y."""
    top, left, bottom, right = margins
    weights = {
        "p": np.array([0, 0, top, left, 0, 0, bottom, right], np.int64),
        "v": np.array(filling, np.float32),
    }
    pads = [0] * 4
    node = helper.make_node(
        pool,
        ["padded"],
        ["y"],
        "pool",
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=attributes.pop("pads", pads),
        **attributes,
    )
    inputs = ["r", "p", "v"] if mode == "constant" else ["r", "p"]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Pad", inputs, ["padded"], "pad", mode=mode),
        node,
    ]
    shape: list[int | str] = [1, 5, size, size]
    return from_nodes(nodes, [tensor_info("x", shape)], [tensor_info("y", list("abcd"))], weights)


def kinds_after(model: onnx.ModelProto) -> Counter[str]:
    """Operators of the simplified model, after making sure that it computes the same."""
    loaded = load(model, check=True)
    feeds = random_inputs(loaded.graph)
    expected = plain_session(model).run(None, feeds)
    import onnx_ir as ir

    found = plain_session(ir.to_proto(loaded.source)).run(None, feeds)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and worst_difference(a, b) < 1e-6
    return Counter(node.op_type for node in loaded.source.graph)


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("margins", [[1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 0, 1]])
def test_margins_become_those_of_the_pool(size: int, margins: list[int]) -> None:
    for counted in (0, 1):
        model = padded_pool("AveragePool", margins, 0.0, 3, size=size, count_include_pad=counted)
        assert not kinds_after(model)["Pad"]


@pytest.mark.parametrize(
    "model",
    [
        padded_pool("MaxPool", [1, 1, 1, 1], 0.0, 3),
        padded_pool("MaxPool", [0, 0, 1, 1], -math.inf, 3),
        padded_pool("AveragePool", [1, 1, 1, 1], 2.0, 3),
        padded_pool("AveragePool", [-1, -1, 0, 0], 0.0, 3),
        padded_pool("AveragePool", [-1, -1, 3, 3], 0.0, 1),
        padded_pool("AveragePool", [-1, -1, 1, 1], 0.0, 1, size=8),
        padded_pool("AveragePool", [-4, -4, 0, 0], 0.0, 1),
        padded_pool("AveragePool", [1, 1, 1, 1], 0.0, 3, pads=[1, 1, 1, 1]),
        padded_pool("AveragePool", [1, 1, 1, 1], 0.0, 2, ceil_mode=1, size=8),
        padded_pool("AveragePool", [1, 1, 1, 1], 0.0, 3, mode="reflect"),
    ],
)
def test_other_pads_stay(model: onnx.ModelProto) -> None:
    assert kinds_after(model)["Pad"] == 1


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
