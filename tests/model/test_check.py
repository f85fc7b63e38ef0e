"""What the simplified model is checked with, and what happens where nothing can be made up."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import coexec
from coexec.costs.estimated import estimated_s
from coexec.engines.detect import usable_cores
from coexec.errors import InputError, ModelError, ModelWarning
from coexec.model.check import check_same
from coexec.model.group import build_graph
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings
from tests.helpers.small_models import from_nodes, tensor_info

TWO = [f"cpu:{core}" for core in usable_cores()[:2]]
INT64 = TensorProto.INT64
node = helper.make_node


def integers(name: str, shape: list, kind: int = INT64) -> onnx.ValueInfoProto:
    return tensor_info(name, shape, kind)


def ort_outputs(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> Any:
    """ONNX Runtime's first output."""
    return ort.InferenceSession(proto.SerializeToString()).run(None, dict(feeds))[0]


def dividing(op: str, kind: int, **attributes: int) -> onnx.ModelProto:
    nodes = [
        node("Unsqueeze", ["d", "axes"], ["column"], "column"),
        node(op, ["x", "column"], ["q"], "divide", **attributes),
        node("Neg" if kind != TensorProto.UINT8 else "Identity", ["q"], ["y"], "last"),
    ]
    x, d, y = integers("x", [8, 3], kind), integers("d", [8], kind), integers("y", [8, 3], kind)
    return from_nodes(nodes, [x, d], [y], {"axes": np.array([1], np.int64)})


def gathering(op: str, **attributes: int) -> onnx.ModelProto:
    """Indices into an axis of one row: only zero is allowed."""
    shape = {"GatherND": [4, 7], "GatherElements": [1, 4]}.get(op, [4, 7])
    indices = {"GatherND": [4, 1], "GatherElements": [1, 4]}.get(op, [4])
    return from_nodes(
        [node("Relu", ["x"], ["h"]), node(op, ["h", "i"], ["y"], "gather", **attributes)],
        [tensor_info("x", [1, 7]), integers("i", indices)],
        [tensor_info("y", shape)],
    )


@pytest.mark.parametrize(
    "proto",
    [
        dividing("Div", INT64),
        dividing("Div", TensorProto.INT32),
        dividing("Mod", INT64),
        gathering("Gather"),
        gathering("Gather", axis=-2),
        gathering("GatherElements"),
        gathering("GatherND"),
    ],
    ids=["Div", "Div32", "Mod", "Gather", "Gather-2", "GatherElements", "GatherND"],
)
def test_made_up_inputs_respect_divisors_and_indices(proto: onnx.ModelProto) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the model is checked, not let pass
        model = load(proto, check=True)
    found = random_inputs(model.graph)
    if "d" in found:
        assert (found["d"] > 0).all()
    else:
        assert (found["i"] == 0).all() and found["x"].any()


@pytest.mark.parametrize("rows", [5, 1])
def test_made_up_indices_lie_anywhere_on_their_axis(rows: int) -> None:
    """A graph network: both ends of the edges are cut out of one input, and are made positive."""
    proto = from_nodes(
        [
            node("Split", ["edges"], ["begins", "ends"], axis=0, num_outputs=2),
            node("Squeeze", ["begins", "first"], ["begin"]),
            node("Less", ["begin", "zero"], ["is_negative"]),
            node("Add", ["begin", "rows"], ["wrapped"]),
            node("Where", ["is_negative", "wrapped", "begin"], ["row"]),
            node("Gather", ["x", "row"], ["messages"], axis=0),
            node("Transpose", ["ends"], ["column"], perm=[1, 0]),
            node("Expand", ["column", "shape"], ["at"]),
            node("ScatterElements", ["x", "at", "messages"], ["y"], axis=0, reduction="add"),
            node("GatherND", ["y", "picks"], ["z"]),
        ],
        [tensor_info("x", [rows, 3]), integers("edges", [2, 64]), integers("picks", [64, 2])],
        [tensor_info("z", [64])],
        {
            "first": np.array([0], np.int64),
            "zero": np.array(0, np.int64),
            "rows": np.array(rows, np.int64),
            "shape": np.array([64, 3], np.int64),
        },
        opset=18,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the model is checked
        model = load(proto, check=True)
    found = random_inputs(model.graph)
    assert found["edges"].min() == 0 and found["edges"].max() == rows - 1
    assert found["picks"].max() == min(rows, 3) - 1


def test_indices_that_a_body_uses_are_zero_beside_random_floats() -> None:
    gather = node("Gather", ["x", "i"], ["row"])
    body = helper.make_graph([gather], "body", [], [tensor_info("row", [4, 7])])
    proto = from_nodes(
        [node("If", ["always"], ["y"], then_branch=body, else_branch=body)],
        [tensor_info("x", [1, 7]), integers("i", [4]), tensor_info("always", [], TensorProto.BOOL)],
        [tensor_info("y", [4, 7])],
    )
    model = load(proto)
    feeds, outputs = model.accepted(lambda feeds: ort_outputs(proto, feeds))
    assert not feeds["i"].any() and np.unique(feeds["x"]).size == 7
    assert np.array_equal(outputs, np.repeat(feeds["x"], 4, axis=0))


def test_examples_that_do_not_run_are_not_replaced() -> None:
    proto = gathering("Gather")
    examples = {"x": np.ones((1, 7), np.float32), "i": np.array([0, 1, 2, 3])}
    model = replace(load(proto), examples=examples)
    with pytest.raises(InputError, match=r"with these inputs: .*out of data bounds.*--inputs FILE"):
        model.accepted(lambda feeds: ort_outputs(proto, feeds))


def fed(op: str, second: list, shape: list, **more: Any) -> onnx.ModelProto:
    """An operator whose second input decides what it does; the result's shape is declared."""
    outputs = more.pop("outputs", ["y"])
    return from_nodes(
        [node("Relu", ["x"], ["h"], "relu"), node(op, ["h", "s"], outputs, "fed", **more)],
        [tensor_info("x", [2, 6]), integers("s", second)],
        [tensor_info(name, shape) for name in outputs],
        opset=18,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("proto", "second", "expected"),
    [
        (fed("Reshape", [2], [4, 3]), [4, 3], lambda x: x.reshape(4, 3)),
        (fed("Split", [2], [2, 3], axis=1, outputs=["y", "z"]), [3, 3], lambda x: x[:, :3]),
        (fed("Tile", [2], [6, 6]), [3, 1], lambda x: np.tile(x, (3, 1))),
        (fed("Expand", [3], [2, 2, 6]), [2, 2, 6], lambda x: np.broadcast_to(x, (2, 2, 6))),
        (fed("Unsqueeze", [2], [2, 1, 1, 6]), [1, 2], lambda x: x[:, None, None]),
        (fed("ReduceSum", [2], [1, 1]), [0, 1], lambda x: x.sum(keepdims=True)),
    ],
    ids=["Reshape", "Split", "Tile", "Expand", "Unsqueeze", "ReduceSum"],
)
def test_models_that_no_made_up_input_suits_run_all_the_same(
    proto: onnx.ModelProto, second: list, expected: Any, tmp_path: Path
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    for devices, planner in ((TWO[:1], "single"), (TWO, "hope_greedy"), (TWO, "auto")):
        words: dict[str, Any] = {"devices": devices, "planner": planner, "cache": tmp_path}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            session = coexec.InferenceSession(proto, **words)
        found = session.run(None, {"x": x, "s": np.array(second, np.int64)})[0]
        session.close()
        assert np.allclose(found, expected(x))


def test_what_was_not_checked_or_measured_is_said_once(tmp_path: Path) -> None:
    proto = fed("Unsqueeze", [2], [2, 1, 1, 6])
    work = PlanningContext(proto, Settings(devices=TWO, cache=tmp_path))
    with pytest.warns(ModelWarning) as said:
        cost, _ = work.measured
    texts = [str(w.message) for w in said]
    assert len([t for t in texts if "was not compared with the given one" in t]) == 1
    assert len([t for t in texts if "rest on estimates" in t]) >= 1
    assert all(len(text.splitlines()) == 1 for text in texts)
    graph = work.model.graph
    for place in (device.engine.place for device in work.devices):
        for task in graph.tasks:
            least_s = estimated_s(graph, task, 1)
            assert cost.tasks_s[place][task.name] == cost.launches_s[place] + least_s > 0


def test_estimates_follow_what_is_computed_and_moved() -> None:
    weights = {"w": np.ones((512, 512), np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["h"], "product"), node("Neg", ["h"], ["y"], "negate")]
    proto = from_nodes(
        nodes, [tensor_info("x", [1024, 512])], [tensor_info("y", [1024, 512])], weights
    )
    graph = load(proto).graph
    product, negate = graph.tasks
    assert estimated_s(graph, product, 1) == 1024 * 512 * 512 / 10e9
    assert estimated_s(graph, product, 2) == estimated_s(graph, product, 1) / 2
    assert estimated_s(graph, negate, 1) == estimated_s(graph, negate, 4) == 2 * 2**21 / 10e9


def model_of(op: str, **attributes: Any) -> ir.Model:
    return ir.from_proto(
        from_nodes(
            [node(op, ["x"], ["y"], **attributes)],
            [tensor_info("x", [64])],
            [tensor_info("y", [64])],
        )
    )


def compared(original: ir.Model, simplified: ir.Model, inputs: Any) -> str | None:
    """Why the models were not compared."""
    return check_same(original, simplified, build_graph(simplified, "small"), inputs)[0]


def test_a_wrong_simplification_is_an_error_and_random_numbers_are_not() -> None:
    inputs = [{"x": np.linspace(-1, 1, 64, dtype=np.float32)}]
    with pytest.raises(ModelError, match="differs from the given one in output 'y'"):
        compared(model_of("Relu"), model_of("Abs"), inputs)
    assert compared(model_of("Relu"), model_of("Relu"), inputs) is None
    random = model_of("RandomUniformLike"), model_of("RandomUniformLike", seed=4.0)
    assert "it draws random numbers" in (compared(*random, inputs) or "")


def test_a_simplification_that_changes_a_shape_is_an_error() -> None:
    def reshaped(*shape: int) -> ir.Model:
        nodes, ends = [node("Reshape", ["x", "s"], ["y"])], ([64], list(shape))
        x, y = (tensor_info(name, end) for name, end in zip("xy", ends, strict=True))
        return ir.from_proto(from_nodes(nodes, [x], [y], {"s": np.array(shape)}))

    feeds = [{"x": np.zeros(64, np.float32)}]
    with pytest.raises(ModelError, match="differs from the given one in output 'y'"):
        compared(reshaped(8, 8), reshaped(4, 16), feeds)
    assert compared(reshaped(8, 8), reshaped(8, 8), feeds) is None


def test_numbers_of_16_bits_may_be_rounded_the_other_way() -> None:
    half = TensorProto.FLOAT16

    def adding(number: float) -> ir.Model:
        ends = [tensor_info(name, [4], half) for name in ("x", "y")]
        proto = from_nodes(
            [node("Add", ["x", "c"], ["y"])], ends[:1], ends[1:], {"c": np.float16([number])}
        )
        return ir.from_proto(proto)

    feeds = [{"x": np.zeros(4, np.float16)}]
    assert compared(adding(1.0), adding(1.0 + 2**-10), feeds) is None
    with pytest.raises(ModelError, match="1e-02 is allowed"):
        compared(adding(1.0), adding(1.1), feeds)
