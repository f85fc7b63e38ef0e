"""Loading: simplification, grouping, and models of every kind."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.errors import ModelError, StoreError, UsageError
from coexec.graph.text import format_graph
from coexec.model.load import load, restore, save
from tests.helpers.small_models import branches, from_nodes, tensor_info

UINT8 = onnx.TensorProto.UINT8
TWO = [f"cpu:{core}" for core in usable_cores()[:2]]


def test_groups_convolution_activation_and_residual() -> None:
    kinds = [t.kind for t in load(branches(width=2)).graph.tasks]
    assert kinds == [
        "Conv+Relu",
        "Conv+Relu",
        "Conv+Add",
        "Conv+Relu",
        "Conv+Add",
        "Concat",
        "MaxPool",
        "GlobalAveragePool",
        "Flatten",
    ]


def test_products_of_integers_are_work() -> None:
    node = helper.make_node
    conv, matmul = 6 * 6 * 8 * 3 * 9, 4 * 5 * 6
    scale, zero = np.float32(0.1), np.uint8(128)
    constants = {"s": scale, "z": zero, "w": np.ones((8, 3, 3, 3), np.uint8),
                 "b": np.ones((5, 6), np.uint8)}  # fmt: skip
    quantized = ["s", "z"]
    nodes = [
        node("QLinearConv", ["x", *quantized, "w", *quantized, *quantized], ["c"]),
        node("ConvInteger", ["x", "w", "z"], ["d"]),
        node("QLinearMatMul", ["a", *quantized, "b", *quantized, *quantized], ["e"]),
        node("MatMulInteger", ["a", "b", "z"], ["f"]),
        node("QGemm", ["a", *quantized, "b", *quantized, "", *quantized], ["g"],
             domain="com.microsoft"),
    ]  # fmt: skip
    inputs = [tensor_info("x", [1, 3, 8, 8], UINT8), tensor_info("a", [4, 5], UINT8)]
    proto = from_nodes(
        nodes,
        inputs,
        [
            tensor_info("c", [1, 8, 6, 6], UINT8),
            tensor_info("d", [1, 8, 6, 6], onnx.TensorProto.INT32),
            tensor_info("e", [4, 6], UINT8),
            tensor_info("f", [4, 6], onnx.TensorProto.INT32),
            tensor_info("g", [4, 6], UINT8),
        ],
        constants,
    )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found = {task.kind: task.macs for task in load(proto).graph.tasks}
    assert found == {
        "QLinearConv": conv, "ConvInteger": conv,
        "QLinearMatMul": matmul, "MatMulInteger": matmul, "QGemm": matmul,
    }  # fmt: skip


def test_same_graph_however_it_is_given(tmp_path: object) -> None:
    from pathlib import Path

    proto = branches()
    path = Path(str(tmp_path)) / "m.onnx"
    onnx.save(proto, str(path))
    texts = {
        format_graph(load(s, name="m").graph) for s in (proto, proto.SerializeToString(), path)
    }
    assert len(texts) == 1


def test_shape_arithmetic_folds_away() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["r"], ["zeros"]),
        helper.make_node("Shape", ["s"], ["r0"]),
        helper.make_node("Concat", ["r0"], ["r"], axis=0),
        helper.make_node("Cast", ["zeros"], ["zi"], to=onnx.TensorProto.INT64),
        helper.make_node("Add", ["s", "zi"], ["t"]),
        helper.make_node("Relu", ["x"], ["y0"]),
        helper.make_node("Reshape", ["y0", "t"], ["y1"]),
        helper.make_node("Sigmoid", ["y1"], ["y"]),
    ]
    nodes = [nodes[i] for i in (0, 2, 3, 1, 4, 5, 6, 7, 8)]
    model = load(from_nodes(nodes, [tensor_info("x", [2, 3])], [tensor_info("y", [2, 3])]))
    assert "Shape" not in {op.op_type for t in model.graph.tasks for op in t.operators}
    assert model.graph.tensors["y"].shape == (2, 3)


def test_pad_joins_what_it_pads() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "p"], ["padded"]),
        helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    weights = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)}
    one, out = [tensor_info("x", [1, 4, 8, 8])], [tensor_info("y", [1, 4, 4, 4])]
    assert [t.kind for t in load(from_nodes(nodes, one, out, weights)).graph.tasks] == [
        "Pad+MaxPool"
    ]


def test_subgraphs_capture_values_and_run(cache: Cache) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["h", "x"], ["b"])], "then", [], [tensor_info("b", [1, 4])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["c"])], "else", [], [tensor_info("c", [1, 4])]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["flag"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=other),
    ]
    proto = from_nodes(
        nodes,
        [tensor_info("x", [1, 4])],
        [tensor_info("y", [1, 4])],
        {"zero": np.array(0, np.float32)},
    )
    model = load(proto, check=True)
    task = next(t for t in model.graph.tasks if t.kind == "If")
    assert set(task.inputs) >= {"flag", "h", "x"}
    from coexec.engines.registry import open_devices
    from coexec.graph.graph import Piece
    from coexec.hardware.hardware import Place
    from coexec.model.inputs import random_inputs
    from coexec.plan.derive import derive
    from coexec.plan.plan import Plan, Provenance
    from coexec.runtime.compiler import Compiler
    from coexec.runtime.executor import Executor

    devices = open_devices([f"cpu:{core}" for core in usable_cores()[:2]])
    order: dict[Place, tuple[Piece, ...]] = {device.engine.place: () for device in devices}
    for number, each in enumerate(model.graph.tasks):  # every other task on the other device
        place = devices[number % len(devices)].engine.place
        order[place] = (*order[place], model.graph.whole_piece(each))
    plan = Plan.of_places(model.graph.fingerprint, order, Provenance("by hand"))
    schedule = derive(plan, model.graph)
    feeds = random_inputs(model.graph)
    with Executor(Compiler(model, cache).compile(schedule, devices), devices) as executor:
        found = executor.run(feeds)["y"]
    x = feeds["x"]
    h = np.maximum(x, 0)
    assert np.allclose(found, h + x if x.sum() > 0 else -h)


def test_outputs_that_fold_to_constants_or_are_inputs(cache: Cache) -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["fixed"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    weights = {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}
    proto = from_nodes(
        nodes,
        [tensor_info("x", [1, 4])],
        [tensor_info("y", [1, 4]), tensor_info("fixed", [3])],
        weights,
    )
    import coexec

    with coexec.InferenceSession(proto, devices=TWO[:1], cache=cache.root) as session:
        x = np.array([[-1, 0, 1, 2]], np.float32)
        y, fixed = session.run(None, {"x": x})
    assert np.array_equal(y, np.maximum(x, 0)) and np.array_equal(fixed, [2, 2, 2])


def test_saved_models_come_back(tmp_path: object) -> None:
    from pathlib import Path

    cache = Cache(Path(str(tmp_path)))
    model = load(branches())
    name = model.graph.name
    assert save(model, cache).graph == model.graph
    entry = cache.find("models", model.digest)
    assert entry is not None and entry.weights
    assert restore(entry, cache, model.digest, name).graph == model.graph
    damaged = replace(entry, files={"model.onnx": b"\x00" * 10})
    with pytest.raises(StoreError, match="damaged"):
        restore(damaged, cache, model.digest, name)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="contradicts"):
        load(branches(), shapes={"x": (1, 4, 20, 20)})
    with pytest.raises(UsageError, match="'z'"):
        load(branches(), shapes={"z": (1,)})


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Concat", ["x"], ["y"], axis=0),
        helper.make_node("Dropout", ["x"], ["y"]),
    ],
    ids=lambda node: str(node.op_type),
)
def test_an_output_that_is_an_input_unchanged(node: onnx.NodeProto, cache: Cache) -> None:
    import coexec

    proto = from_nodes(
        [node, helper.make_node("Relu", ["x"], ["z"])],
        [tensor_info("x", [3, 4])],
        [tensor_info("y", [3, 4]), tensor_info("z", [3, 4])],
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    with coexec.InferenceSession(proto, devices=TWO, cache=cache.root) as session:
        y, z = session.run(None, {"x": x})
    assert np.array_equal(y, x) and np.array_equal(z, np.maximum(x, 0))


def test_a_type_that_an_operator_does_not_take() -> None:
    ends = tensor_info("x", [3], 8), tensor_info("y", [3], 8)
    with pytest.raises(ModelError, match="string"):
        load(from_nodes([helper.make_node("Relu", ["x"], ["y"], "r")], [ends[0]], [ends[1]]))
