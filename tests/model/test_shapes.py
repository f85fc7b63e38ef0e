"""Types and shapes come from operators, not from what a file declares; a run corrects them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, given, settings
from onnx import TensorProto, helper, numpy_helper

import coexec
from coexec.engines.detect import usable_cores
from coexec.errors import ModelError, ModelWarning
from coexec.model import shapes
from coexec.model.difference import worst_difference
from coexec.model.load import load
from coexec.model.model import Model
from coexec.model.shapes import infer, is_misinferred
from tests.helpers.onnx_models import model_of, proto_of, run
from tests.helpers.shape_cases import FAMILIES
from tests.helpers.small_models import from_nodes, tensor_info

TWO = [f"cpu:{core}" for core in usable_cores()[:2]]
FLOATS = np.random.default_rng(2).standard_normal((2, 4, 6, 6)).astype(np.float32)
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
    opaque = []

    @quick
    @given(FAMILIES[family])
    def check(case: Any) -> None:
        nonlocal differences
        proto = proto_of(case)
        computed = shape_by_ort(proto)
        assume(computed is not None)
        graph = model_of(case).graph
        output = graph.tensors[graph.outputs[0]]
        # Where inference leaves a size open, ONNX Runtime computes the task, whatever its shape.
        assert output.opaque or output.shape == computed
        opaque.append(output.opaque)
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output[0].type.tensor_type.shape
        differences += tuple(d.dim_value for d in inferred.dim) != computed

    check()
    assert sum(opaque) <= len(opaque) / 2  # most are empty parts by Slice of opset 1
    assert differences  # from what ONNX infers; without one this would show nothing


def shape_by_ort(proto: onnx.ModelProto) -> tuple[int, ...] | None:
    """None if ONNX Runtime refuses the model."""
    model = ir.from_proto(proto)
    shapes = {v.name: v.shape.numpy() for v in model.graph.inputs if v.shape is not None}
    try:
        return run(model, {n: np.ones(s, np.float32) for n, s in shapes.items()})[0].shape
    except Exception:
        return None


RESIZED = {
    "down": np.array([1, 1, 0.7], np.float32),
    "up": np.array([1, 1, 1.4], np.float32),
    "wanted": np.array([1, 2, 7], np.float32),
}


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        pytest.param(
            [
                node("Resize", ["x", "", "down"], ["a"]),
                node("Relu", ["a"], ["b"]),
                node("Resize", ["b", "", "up"], ["y"]),
            ],
            {"b": 7, "y": 9},
            id="read from a wrong shape",
        ),
        pytest.param(
            [
                node("Shape", ["x"], ["s"]),
                node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
                node("Div", ["wanted", "f"], ["scales"]),
                node("Resize", ["x", "", "scales"], ["a"]),
                node("Relu", ["a"], ["y"]),
            ],
            {"y": 7},
            id="scales that fold to constants",
        ),
    ],
)
def test_a_run_corrects_what_is_inferred(
    nodes: list[onnx.NodeProto], sizes: dict[str, int], check: bool
) -> None:
    """Seven rows of ten by 0.7, not six; nine of these by 1.4, not eight."""
    read = {name for each in nodes for name in each.input}
    weights = {name: array for name, array in RESIZED.items() if name in read}
    x, y = tensor_info("x", [1, 2, 10]), onnx.ValueInfoProto(name="y")
    model = load(from_nodes(nodes, [x], [y], weights), check=check)
    assert {name: model.graph.tensors[name].shape[2] for name in sizes} == sizes
    assert is_misinferred(model.source)


def test_a_shape_that_cannot_be_corrected_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a plan would be made for the wrong one."""
    proto = from_nodes(
        [node("Resize", ["x", "", "s"], ["a"]), node("Relu", ["a"], ["y"])],
        [tensor_info("x", [1, 2, 10])],
        [onnx.ValueInfoProto(name="y")],
        {"s": np.array([1, 1, 0.7], np.float32)},
    )
    assert load(proto, check=False).graph.tensors["y"].shape == (1, 2, 7)

    def failing(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(shapes, "compute_shapes", failing)
    with pytest.raises(ModelError, match=r"run that would correct it failed \(no memory\)"):
        load(proto, check=False)


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


def test_operators_that_only_onnx_runtime_has() -> None:
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
    inputs = [tensor_info("x", [1, 9, 14, 3], TensorProto.UINT8)]
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


def test_types_that_no_file_declares() -> None:
    """ONNX Runtime describes a scalar and an unknown rank alike; a sequence is no tensor."""
    nodes = [
        node("ArgMax", ["x"], ["h"], axis=1, keepdims=0),
        node("Cast", ["h"], ["whole"], to=TensorProto.INT8),
        node("SplitToSequence", ["x"], ["s"], axis=0),
        node("Identity", ["s"], ["t"]),
        node("SequenceAt", ["t", "i"], ["unknown"]),
        node("SequenceLength", ["t"], ["length"]),
        node("QuickGelu", ["k"], ["scalar"], domain="com.microsoft"),
    ]
    names = ("whole", "unknown", "length", "scalar")
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    inputs = [tensor_info("x", [2, 4, 6]), tensor_info("k", [])]
    proto = from_nodes(nodes, inputs, outputs, {"i": np.array(0, np.int64)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model = ir.from_proto(proto)
    infer(model)
    sequence = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    assert {v.name: (v.type, v.shape) for n in model.graph for v in n.outputs} == {
        "h": (ir.TensorType(ir.DataType.INT64), ir.Shape([2, 6])),
        "whole": (ir.TensorType(ir.DataType.INT8), ir.Shape([2, 6])),
        "s": (sequence, None),
        "t": (sequence, None),
        "unknown": (ir.TensorType(ir.DataType.FLOAT), None),
        "length": (ir.TensorType(ir.DataType.INT64), ir.Shape([])),
        "scalar": (ir.TensorType(ir.DataType.FLOAT), ir.Shape([])),
    }
    assert [v.name for v in model.graph.outputs] == list(names)


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
