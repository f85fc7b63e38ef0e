"""Shapes are those that ONNX Runtime computes, where ONNX's inference has others too."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, given, settings
from onnx import helper

import coexec
from coexec.engines.detect import usable_cores
from coexec.model.check import worst_difference
from coexec.model.load import load
from coexec.model.model import Model
from tests.helpers.onnx_models import model_of, proto_of, run
from tests.helpers.shape_cases import FAMILIES
from tests.helpers.small_models import from_nodes, tensor_info

TWO = [f"cpu:{core}" for core in usable_cores()[:2]]
node = helper.make_node

quick = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=80,
    suppress_health_check=list(HealthCheck),
)


def output_shape(model: Model) -> tuple[int, ...]:
    return model.graph.tensors[model.graph.outputs[0]].shape


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_has_the_shape_that_onnx_runtime_computes(family: str) -> None:
    differences = 0

    @quick
    @given(FAMILIES[family])
    def check(case: Any) -> None:
        nonlocal differences
        proto = proto_of(case)
        computed = shape_by_ort(proto)
        assume(computed is not None)
        assert output_shape(model_of(case)) == computed
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output[0].type.tensor_type.shape
        differences += tuple(d.dim_value for d in inferred.dim) != computed

    check()
    assert differences  # from what ONNX infers; without one this would show nothing


def shape_by_ort(proto: onnx.ModelProto) -> tuple[int, ...] | None:
    """None if ONNX Runtime refuses the model."""
    model = ir.from_proto(proto)
    shapes = {v.name: v.shape.numpy() for v in model.graph.inputs if v.shape is not None}
    try:
        return run(model, {n: np.ones(s, np.float32) for n, s in shapes.items()})[0].shape
    except Exception:
        return None


def scaled(opset: int = 13, **attributes: Any) -> onnx.ModelProto:
    """506 pairs of size and scale: a Resize for each."""
    sizes = range(5, 28)
    scales = [0.1 * n for n in range(1, 31) if n not in (10, 15, 20, 25)][:22]
    nodes, weights = [], {}
    for i, scale in enumerate(scales):
        weights[f"s{i}"] = np.array([1, 1, scale], np.float32)
    for size in sizes:
        for i in range(len(scales)):
            nodes.append(node("Resize", [f"x{size}", "", f"s{i}"], [f"y{size}.{i}"], **attributes))
    inputs = [tensor_info(f"x{size}", [1, 1, size]) for size in sizes]
    outputs = [onnx.ValueInfoProto(name=n.output[0]) for n in nodes]
    return from_nodes(nodes, inputs, outputs, weights, opset)


def test_506_pairs_of_size_and_scale() -> None:
    proto = scaled()
    feeds = {v.name: np.zeros([1, 1, int(v.name[1:])], np.float32) for v in proto.graph.input}
    session = ort.InferenceSession(proto.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    computed = {n: y.shape for n, y in zip(names, session.run(None, feeds), strict=True)}
    inferred = {o.name: tuple(o.shape) for o in session.get_outputs()}
    assert len(computed) == 506
    assert inferred != computed
    tensors = load(proto).graph.tensors
    assert {name: tensors[name].shape for name in computed} == computed


def test_what_is_read_from_a_wrong_shape_is_corrected_too() -> None:
    """Seven rows of ten by 0.7, not six; nine of these by 1.4, not eight."""
    nodes = [
        node("Resize", ["x", "", "down"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Resize", ["b", "", "up"], ["y"]),
    ]
    weights = {"down": np.array([1, 1, 0.7], np.float32), "up": np.array([1, 1, 1.4], np.float32)}
    proto = from_nodes(
        nodes, [tensor_info("x", [1, 2, 10])], [onnx.ValueInfoProto(name="y")], weights
    )
    tensors = load(proto).graph.tensors
    assert [tensors[name].shape[2] for name in ("b", "y")] == [7, 9]


def test_scales_that_fold_to_constants_have_the_shape_that_is_computed() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=onnx.TensorProto.FLOAT),
        node("Div", ["wanted", "f"], ["scales"]),
        node("Resize", ["x", "", "scales"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    weights = {"wanted": np.array([1, 2, 7], np.float32)}
    proto = from_nodes(
        nodes, [tensor_info("x", [1, 2, 10])], [onnx.ValueInfoProto(name="y")], weights
    )
    assert output_shape(load(proto)) == (1, 2, 7)


def test_scales_that_are_computed_leave_the_shape_open() -> None:
    nodes = [node("Resize", ["x", "", "s"], ["a"]), node("Relu", ["a"], ["y"])]
    inputs = [tensor_info("x", [1, 2, 10]), tensor_info("s", [3])]
    model = load(from_nodes(nodes, inputs, [onnx.ValueInfoProto(name="y")], {}))
    assert model.graph.tensors["y"].opaque
    assert {task.opaque for task in model.graph.tasks} == {
        "the shape of 'a' (Resize) depends on data"
    }


def test_functions_count() -> None:
    inside = [
        node("Constant", [], ["s"], value_floats=[1.0, 1.0, 0.7]),
        node("Resize", ["p", "", "s"], ["q"]),
    ]
    x, y = tensor_info("x", [1, 2, 10]), onnx.ValueInfoProto(name="y")
    proto = from_nodes([node("Half", ["x"], ["y"], domain="mine")], [x], [y], {})
    imports = [helper.make_opsetid("", proto.opset_import[0].version)]
    proto.functions.append(helper.make_function("mine", "Half", ["p"], ["q"], inside, imports))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert output_shape(load(proto)) == (1, 2, 7)


def test_of_operators_of_onnx_runtime_it_is_asked_for_shapes_first(tmp_path: Path) -> None:
    """The pool's input has a shape only when ONNX Runtime has told it."""
    quantised = {"s": np.array(0.02, np.float32), "z": np.array(3, np.uint8)}
    nodes = [
        node("QLinearSigmoid", ["x", "s", "z", "s", "z"], ["a"], domain="com.microsoft"),
        node(
            "NhwcMaxPool",
            ["a"],
            ["b"],
            domain="com.microsoft",
            kernel_shape=[3, 3],
            strides=[2, 2],
            auto_pad="SAME_LOWER",
            dilations=[2, 1],
        ),
        node("QLinearSigmoid", ["b", "s", "z", "s", "z"], ["y"], domain="com.microsoft"),
    ]
    inputs = [tensor_info("x", [1, 9, 14, 3], onnx.TensorProto.UINT8)]
    proto = from_nodes(nodes, inputs, [onnx.ValueInfoProto(name="y")], quantised)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    computed = ort.InferenceSession(proto.SerializeToString()).run(
        None, {"x": np.zeros([1, 9, 14, 3], np.uint8)}
    )[0]
    assert output_shape(load(proto)) == computed.shape


def kernel(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 0.1


PLANNED: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray], int]] = {
    "fractional scale": (node("Resize", ["a", "", "s"], ["b"], "it", mode="linear"),
                         {"s": np.array([1, 1, 0.7, 1.4], np.float32)}, 13),
    "region of no elements": (
        node("Resize", ["a", "roi", "s"], ["b"], "it", coordinate_transformation_mode="asymmetric"),
        {"s": np.array([1, 1, 2, 2], np.float32), "roi": np.zeros(0, np.float32)}, 11),
    "dilated pool": (node("MaxPool", ["a"], ["b"], "it", kernel_shape=[3, 3], strides=[1, 2],
                          dilations=[2, 2], auto_pad="SAME_LOWER"), {}, 13),
    "rounded up pool": (node("AveragePool", ["a"], ["b"], "it", kernel_shape=[1, 3], ceil_mode=1,
                             strides=[2, 4], count_include_pad=1), {}, 13),
    "transposed": (node("ConvTranspose", ["a", "w"], ["b"], "it", auto_pad="SAME_UPPER",
                        strides=[2, 2], output_padding=[1, 1]), {"w": kernel(16, 16, 3, 3)}, 13),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.skipif(len(TWO) < 2, reason="needs two cores")
@pytest.mark.parametrize("what", PLANNED)
@pytest.mark.parametrize("planner", ["heft", "codl"])
def test_plans_have_these_shapes(what: str, planner: str, tmp_path: Path) -> None:
    middle, weights, opset = PLANNED[what]
    nodes = [
        node("Conv", ["x", "before"], ["a"], "before", pads=[1] * 4),
        middle,
        node("Conv", ["b", "after"], ["y"], "after", pads=[1] * 4),
    ]
    weights = weights | {"before": kernel(16, 3, 3, 3), "after": kernel(16, 16, 3, 3)}
    proto = from_nodes(
        nodes, [tensor_info("x", [1, 3, 22, 24])], [onnx.ValueInfoProto(name="y")], weights, opset
    )
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 3, 22, 24)).astype(np.float32)}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    expected = ort.InferenceSession(proto.SerializeToString(), options).run(None, feeds)[0]
    with coexec.InferenceSession(proto, devices=TWO, planner=planner, cache=tmp_path) as session:
        found = session.run(None, feeds)[0]
        assert session.degraded is None
    assert found.shape == expected.shape
    assert worst_difference(found, expected) < 1e-5


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
