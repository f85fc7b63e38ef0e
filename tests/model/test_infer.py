"""Types and shapes come from operators, not from what a file happens to declare."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import coexec
from coexec.engines.detect import usable_cores
from coexec.errors import ModelWarning
from coexec.model.check import worst_difference
from coexec.model.shapes import infer
from tests.helpers.small_models import from_nodes, tensor_info

TWO = [f"cpu:{core}" for core in usable_cores()[:2]]
node = helper.make_node


def same_as_onnx_runtime(proto: onnx.ModelProto, feeds: dict[str, Any], cache: Path) -> None:
    """On one and on two devices."""
    expected = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for devices, planner in ((TWO[:1], "single"), (TWO, "hope_greedy")):
        words: dict[str, Any] = {"devices": devices, "planner": planner, "cache": cache}
        with coexec.InferenceSession(proto, **words) as session:
            for a, b in zip(session.run(None, feeds), expected, strict=True):
                assert worst_difference(a, b) < 1e-5


def quantized(count: int) -> onnx.ModelProto:
    """A chain of quantized convolutions."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {"s": np.array(0.02, np.float32), "z": np.array(3, np.uint8)}
    nodes, before = [], "x"
    for i in range(count):
        weights[f"w{i}"] = rng.integers(0, 255, (8, 8, 3, 3)).astype(np.uint8)
        inputs = [before, "s", "z", f"w{i}", "s", "z", "s", "z"]
        before = "y" if i == count - 1 else f"h{i}"
        nodes.append(node("QLinearConv", inputs, [before], f"conv{i}", pads=[1] * 4))
    kind = TensorProto.UINT8
    return from_nodes(
        nodes,
        [tensor_info("x", [1, 8, 9, 9], kind)],
        [tensor_info("y", [1, 8, 9, 9], kind)],
        weights,
    )


def test_quantized_convolutions_in_a_row(tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 255, (1, 8, 9, 9)).astype(np.uint8)
    same_as_onnx_runtime(quantized(3), {"x": x}, tmp_path)


FLOATS = np.random.default_rng(2).standard_normal((2, 4, 6, 6)).astype(np.float32)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("op", "weights", "attributes", "shape", "opset"),
    [
        (
            "GroupNormalization",
            [np.ones(4, np.float32), np.zeros(4, np.float32)],
            {"num_groups": 2},
            [2, 4, 6, 6],
            21,
        ),
        ("CenterCropPad", [np.array([4, 8], np.int64)], {"axes": [2, 3]}, [2, 4, 4, 8], 18),
        (
            "NegativeLogLikelihoodLoss",
            [np.ones((2, 6, 6), np.int64)],
            {"reduction": "none"},
            [2, 6, 6],
            13,
        ),
        ("SoftmaxCrossEntropyLoss", [np.ones((2, 6, 6), np.int64)], {}, [], 13),
        ("MeanVarianceNormalization", [], {"axes": [2, 3]}, [2, 4, 6, 6], 13),
    ],
)
def test_operators_that_are_functions(
    op: str,
    weights: Sequence[np.ndarray],
    attributes: dict,
    shape: list,
    opset: int,
    tmp_path: Path,
) -> None:
    names = [f"w{i}" for i in range(len(weights))]
    nodes = [
        node("Relu", ["x"], ["h"], "relu"),
        node(op, ["h", *names], ["loss"], "it", **attributes),
        node("Sigmoid", ["loss"], ["y"], "sigmoid"),
    ]
    stored = dict(zip(names, weights, strict=True))
    proto = from_nodes(
        nodes, [tensor_info("x", [2, 4, 6, 6])], [tensor_info("y", shape)], stored, opset
    )
    same_as_onnx_runtime(proto, {"x": FLOATS}, tmp_path)


def test_what_is_still_unknown_onnx_runtime_is_asked_for() -> None:
    nodes = [
        node("ArgMax", ["x"], ["h"], "max", axis=1, keepdims=0),
        node("Cast", ["h"], ["y"], "cast", to=TensorProto.INT8),
        node("SequenceConstruct", ["x"], ["s"], "list"),
        node("SequenceAt", ["s", "k"], ["z"], "at"),
    ]
    weights = {"k": np.array(0, np.int64)}
    outputs = [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")]
    proto = from_nodes(nodes, [tensor_info("x", [2, 4, 6, 6])], outputs, weights)
    model = ir.from_proto(proto)
    infer(model)
    values = {v.name: v for node in model.graph for v in node.outputs}
    known = {name: (v.dtype, v.shape) for name, v in values.items() if name in ("h", "y")}
    assert known == {
        "h": (ir.DataType.INT64, ir.Shape([2, 6, 6])),
        "y": (ir.DataType.INT8, ir.Shape([2, 6, 6])),
    }
    assert values["z"].dtype == ir.DataType.FLOAT
    assert values["s"].type == ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    assert [v.name for v in model.graph.outputs] == ["y", "z"]


@pytest.mark.parametrize("name", ["s", "t"])
def test_a_sequence_without_a_declared_type_is_no_tensor(name: str) -> None:
    """The type of its elements is not the type of the sequence, nor of a copy of it."""
    nodes = [
        node("SplitToSequence", ["x"], ["s"], "split", axis=0),
        node("Identity", ["s"], ["t"], "copy"),
        node("SequenceLength", ["t"], ["y"], "length"),
    ]
    proto = from_nodes(nodes, [tensor_info("x", [2, 3])], [onnx.ValueInfoProto(name="y")], {})
    model = ir.from_proto(proto)
    infer(model)
    values = {v.name: v for each in model.graph for v in each.outputs}
    assert values[name].type == ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    assert values["y"].type == ir.TensorType(ir.DataType.INT64)


def test_a_wrong_declaration_does_not_count(tmp_path: Path) -> None:
    nodes = [node("Transpose", ["x"], ["h"], "t", perm=[1, 0]), node("Relu", ["h"], ["y"], "r")]
    proto = from_nodes(nodes, [tensor_info("x", [2, 3])], [tensor_info("y", [2, 3])])
    proto.graph.value_info.append(tensor_info("h", [6, 1]))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    words: dict[str, Any] = {"devices": TWO[:1], "planner": "single", "cache": tmp_path}
    with pytest.warns(ModelWarning, match=r"2 wrong shapes: 'h' as \[6, 1\] where it has \[3, 2\]"):
        session = coexec.InferenceSession(proto, **words)
    assert np.array_equal(session.run(None, {"x": x})[0], x.T)
    session.close()


def test_constants_of_bodies_stay_with_them(tmp_path: Path) -> None:
    """ONNX Runtime moves large ones to a file of its own when it lowers a model."""
    large = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "large")
    then = helper.make_graph(
        [node("Add", ["x", "large"], ["a"])], "then", [], [tensor_info("a", [1000])], [large]
    )
    other = helper.make_graph([node("Neg", ["x"], ["b"])], "else", [], [tensor_info("b", [1000])])
    nodes = [node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other)]
    inputs = [tensor_info("c", [], TensorProto.BOOL), tensor_info("x", [1000])]
    proto = from_nodes(nodes, inputs, [tensor_info("y", [1000])])
    x = np.ones(1000, np.float32)
    for flag in (True, False):
        same_as_onnx_runtime(proto, {"c": np.array(flag), "x": x}, tmp_path)
