"""Extracted segments compute what the whole model computes, and leave the model as it was."""

import time
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.errors import PlanError
from coexec.graph.graph import Piece, tensor_part
from coexec.graph.region import Region
from coexec.model.load import load
from coexec.model.model import Model
from tests.helpers.examples import scaled
from tests.helpers.network_cases import networks, pieces_of
from tests.helpers.onnx_models import (
    direct,
    module_of_pieces,
    part_feeds,
    plain_of,
    random_feeds,
    run,
    segment_inputs,
    tensor,
    written,
)

quick = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=scaled(60),
    suppress_health_check=list(HealthCheck),
)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def residual_block(opset: int = 17) -> Model:
    """conv1 + relu, then conv2 + add + relu: two tasks."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="conv2", auto_pad="SAME_UPPER"),
        helper.make_node("Add", ["c", "x"], ["d"], name="add"),
        helper.make_node("Relu", ["d"], ["y"], name="relu2"),
    ]
    weights = {"w1": random(6, 4, 3, 3), "b1": random(6), "w2": random(4, 6, 3, 3)}
    return direct(nodes, [tensor("x", (1, 4, 8, 8))], ["y"], weights, opset)


def whole(model: Model, name: str) -> tuple[str, Region]:
    return name, model.graph.tensors[name].whole


@quick
@given(st.data())
def test_one_segment_of_pieces_equals_the_model(data: st.DataObject) -> None:
    model = data.draw(networks())
    # What an operator needs of a tensor that it reads twice is one box around both parts, while the
    # module reads the parts: their names differ, see test_segments_in_sequence_equal_the_model.
    assume(
        not any(
            len(set(op.inputs)) < len(op.inputs)
            for task in model.graph.tasks
            for op in task.operators
        )
    )
    pieces = data.draw(pieces_of(model.graph))
    feeds = random_feeds(model)
    ends = [whole(model, name) for name in model.graph.outputs]
    small = written(model, pieces, ends)
    onnx.checker.check_model(ir.to_proto(small))
    reads = segment_inputs(model.graph, pieces, ends)
    assert [v.name for v in small.graph.inputs] == [tensor_part(*r, model.graph) for r in reads]
    for found, wanted in zip(
        run(small, part_feeds(model, reads, feeds)), run(model.source, feeds), strict=True
    ):
        close(found, wanted)


@quick
@given(st.data())
def test_segments_in_sequence_equal_the_model(data: st.DataObject) -> None:
    """Results are written to their part of a tensor's buffer, and inputs are read from there."""
    model = data.draw(networks())
    graph = model.graph
    pieces = data.draw(pieces_of(graph))
    feeds = random_feeds(model)
    buffers = {
        n: np.full(t.shape, np.nan, t.dtype)
        for n, t in graph.tensors.items()
        if t.dtype == "float32"
    } | feeds
    ends = sorted({*data.draw(st.sets(st.integers(1, len(pieces)))), len(pieces)})
    for start, stop in pairwise([0, *ends]):
        segment = pieces[start:stop]
        makes = [
            (name, piece.region if i == 0 else graph.tensors[name].whole)
            for piece in segment
            for i, name in enumerate(graph.task[piece.task].outputs)
        ]
        reads = segment_inputs(graph, segment)
        fed = part_feeds(model, reads, buffers)
        assert not any(np.isnan(values).any() for values in fed.values())
        module = written(model, segment, makes, reads)
        # A read that lies inside of another one is no input of its own.
        results = run(module, {value.name: fed[value.name] for value in module.graph.inputs})
        for (name, region), values in zip(makes, results, strict=True):
            buffers[name][region.slices] = values
    for name, wanted in zip(graph.outputs, run(model.source, feeds), strict=True):
        close(buffers[name], wanted)


def test_a_fused_task_is_cut_by_rows_and_by_channels_with_its_residual() -> None:
    model = residual_block()
    feeds = {"x": random(1, 4, 8, 8)}
    feeds["b"] = run(
        written(model, [model.graph.whole_piece(model.graph.tasks[0])], [whole(model, "b")]), feeds
    )[0]
    wanted = run(model.source, feeds={"x": feeds["x"]})[0]
    rows, channels = Region((0, 0, 2, 0), (1, 4, 5, 8)), Region((0, 1, 0, 0), (1, 3, 8, 8))
    for region, of_b, of_x in (
        (rows, Region((0, 0, 1, 0), (1, 6, 6, 8)), rows),
        (channels, Region.whole((1, 6, 8, 8)), channels),
    ):
        piece = Piece("conv2", region)
        reads = segment_inputs(model.graph, [piece])
        assert reads == (("b", of_b), ("x", of_x))
        small = written(model, [piece], [("y", region)])
        assert [n.op_type for n in small.graph] == ["Conv", "Add", "Relu"]
        close(run(small, part_feeds(model, reads, feeds))[0], wanted[region.slices])


@pytest.mark.parametrize("opset", [9, 17])
def test_halves_of_two_tasks_share_their_halo(opset: int) -> None:
    """Before opset 10 the bounds of Slice are attributes."""
    model = residual_block(opset)
    top, bottom = Region((0, 0, 0, 0), (1, 6, 5, 8)), Region((0, 0, 5, 0), (1, 6, 8, 8))
    upper, lower = Region((0, 0, 0, 0), (1, 4, 3, 8)), Region((0, 0, 3, 0), (1, 4, 8, 8))
    pieces = [
        Piece("conv1", top),
        Piece("conv1", bottom),
        Piece("conv2", upper),
        Piece("conv2", lower),
    ]
    small = written(model, pieces, [whole(model, "y")])
    kinds = [node.op_type for node in small.graph]
    assert kinds.count("Conv") == 4
    feeds = {"x": random(1, 4, 8, 8)}
    parts = part_feeds(model, segment_inputs(model.graph, pieces), feeds)
    close(run(small, parts)[0], run(model.source, feeds)[0])


def test_a_part_comes_from_outside_and_the_rest_from_the_segment() -> None:
    model = residual_block()
    top, bottom = Region((0, 0, 0, 0), (1, 6, 3, 8)), Region((0, 0, 3, 0), (1, 6, 8, 8))
    pieces = [Piece("conv1", top), model.graph.whole_piece(model.graph.task["conv2"])]
    reads = segment_inputs(model.graph, pieces)
    assert ("b", bottom) in reads
    feeds = {"x": random(1, 4, 8, 8)}
    first = written(model, [Piece("conv1", bottom)], [("b", bottom)])
    below = run(
        first, part_feeds(model, segment_inputs(model.graph, [Piece("conv1", bottom)]), feeds)
    )
    fed = part_feeds(model, [r for r in reads if r[0] == "x"], feeds)
    small = written(model, pieces, [whole(model, "y")])
    found = run(small, {**fed, tensor_part("b", bottom, model.graph): below[0]})
    close(found[0], run(model.source, feeds)[0])


def test_pieces_share_an_input_that_is_given_once() -> None:
    model = residual_block()
    halves = [Region((0, 0, a, 0), (1, 6, a + 4, 8)) for a in (0, 4)]
    pieces = [Piece("conv1", region) for region in halves]
    small = written(model, pieces, [whole(model, "b")], inputs=[whole(model, "x")])
    assert [v.name for v in small.graph.inputs] == ["x"]
    feeds = {"x": random(1, 4, 8, 8)}
    wanted = written(model, [Piece("conv1", Region.whole((1, 6, 8, 8)))], [whole(model, "b")])
    close(run(small, feeds)[0], run(wanted, feeds)[0])


def test_a_whole_model_keeps_its_nodes_and_weights() -> None:
    model = load(ir.to_proto(residual_block().source))
    pieces = [model.graph.whole_piece(task) for task in model.graph.tasks]
    small = written(model, pieces, [whole(model, "y")])
    for mine, theirs in zip(small.graph, model.source.graph, strict=True):
        wanted = ir.serde.serialize_node(theirs)
        wanted.ClearField("metadata_props")  # what the simplifier notes down about its own rules
        assert ir.serde.serialize_node(mine) == wanted
    assert small.opset_imports == model.source.opset_imports
    assert small.ir_version == model.source.ir_version
    for name, value in small.graph.initializers.items():
        theirs = model.source.graph.initializers[name].const_value
        assert value.const_value is not None and theirs is not None
        assert np.array_equal(value.const_value.numpy(), theirs.numpy())
    feeds = {"x": random(1, 4, 8, 8)}
    close(run(small, feeds)[0], run(model.source, feeds)[0])


def test_parts_of_weights_are_not_copied() -> None:
    weights = {"w": random(16, 8, 3, 3)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])]
    model = direct(nodes, [tensor("x", (1, 8, 8, 8))], ["y"], weights)
    held = ir.Tensor(weights["w"], name="w")
    model.values["w"].const_value = held
    halves = [Region((0, a, 0, 0), (1, a + 8, 8, 8)) for a in (0, 8)]
    pieces = [Piece("conv", region) for region in halves]
    module = module_of_pieces(model, plain_of(model), pieces, [whole(model, "y")])
    assert set(module.weights) == {"w[0:8, 0:8, 0:3, 0:3]", "w[8:16, 0:8, 0:3, 0:3]"}
    assert all(np.shares_memory(part, held.numpy()) for part in module.weights.values())


def test_a_small_part_of_a_large_weight_lies_in_the_module() -> None:
    """Engines look into constants of a few numbers, which a placeholder does not have."""
    weights = {"w": random(512, 4, 1, 1), "b": random(512)}
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv")
    model = direct([node], [tensor("x", (1, 4, 2, 2))], ["y"], weights)
    channels = Region((0, 0, 0, 0), (1, 16, 2, 2))
    pieces = [Piece("conv", channels)]
    module = module_of_pieces(model, plain_of(model), pieces, [("y", channels)])
    assert not module.weights
    small = ir.serde.deserialize_model(onnx.load_model_from_string(module.proto))
    found, *_ = run(small, {"x": np.ones((1, 4, 2, 2), np.float32)})
    close(found[0, :, 0, 0], weights["w"][:16].sum((1, 2, 3)) + weights["b"][:16])


def conditional() -> Model:
    """An If whose branches read the outer value "a" and the weight "w"."""
    branches = {}
    for kind in ("Add", "Mul"):
        node = helper.make_node(kind, ["a", "w"], ["r"], name=kind)
        branches[kind] = helper.make_graph([node], kind, [], [tensor("r", (2, 3))])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node(
            "If", ["c"], ["y"], name="if", then_branch=branches["Add"], else_branch=branches["Mul"]
        ),
    ]
    inputs = [tensor("x", (2, 3)), tensor("c", (), "bool")]
    return direct(nodes, inputs, ["y"], {"w": random(3)})


def test_branches_read_the_values_of_the_new_model() -> None:
    model = conditional()
    feeds = {"x": random(2, 3), "c": np.array(True)}
    halves = [Piece("relu", Region((i, 0), (i + 1, 3))) for i in (0, 1)]
    pieces = [*halves, model.graph.whole_piece(model.graph.task["if"])]
    small = written(model, pieces, [whole(model, "y")])
    close(
        run(small, part_feeds(model, segment_inputs(model.graph, pieces), feeds))[0],
        run(model.source, feeds)[0],
    )
    alone = written(model, pieces[2:], [whole(model, "y")])
    assert {v.name for v in alone.graph.inputs} == {"a", "c"}
    outer = {v for node in alone.graph.all_nodes() for v in node.inputs} & {*model.values.values()}
    assert not outer


@pytest.mark.parametrize("make", [residual_block, conditional])
def test_the_source_model_is_not_changed(make: Any) -> None:
    model = make()
    before = ir.to_proto(model.source).SerializeToString(deterministic=True)
    uses = {name: value.uses() for name, value in model.values.items()}
    owners = {name: value.graph for name, value in model.values.items()}
    pieces = [model.graph.whole_piece(task) for task in model.graph.tasks]
    small = written(model, pieces, [whole(model, "y")])
    run(small, random_feeds(model))
    for node in list(small.graph):
        node.name = f"{node.name}!"
    assert ir.to_proto(model.source).SerializeToString(deterministic=True) == before
    assert {name: value.uses() for name, value in model.values.items()} == uses
    assert {name: value.graph for name, value in model.values.items()} == owners


def test_nodes_without_names_and_of_one_name_are_cut_alike() -> None:
    """A runtime refuses two nodes of one name, but not nodes without."""
    for names in (["", "", ""], ["same", "same", "same"]):
        values = list(pairwise(["x", "a", "b", "y"]))
        nodes = [
            helper.make_node("Relu", [i], [o], name=name)
            for (i, o), name in zip(values, names, strict=True)
        ]
        model = direct(nodes, [tensor("x", (2, 3))], ["y"], {})
        half = Region((0, 0), (1, 3))
        pieces = [Piece(task.name, half) for task in model.graph.tasks]
        small = written(model, pieces, [("y", half)])
        called = [node.name for node in small.graph if node.name]
        assert len(called) == len(set(called))
        x = random(2, 3)
        read = segment_inputs(model.graph, pieces)
        given = part_feeds(model, read, dict.fromkeys("xab", x))
        np.testing.assert_array_equal(run(small, given)[0], np.maximum(x, 0)[:1])


ROWS = Region((0, 0, 0, 0), (1, 6, 4, 8))


def test_missing_inputs_are_named() -> None:
    model = residual_block()
    with pytest.raises(PlanError, match=r"needs b\[0:1, 0:6, 0:5, 0:8\] .* has \[0:1, 0:6, 0:4"):
        region = Region((0, 0, 0, 0), (1, 4, 4, 8))
        written(model, [Piece("conv2", region)], [("y", region)], inputs=[("b", ROWS)])


def test_cutting_a_large_model_in_many_segments_is_fast() -> None:
    names = ["x", *(f"t{i}" for i in range(700))]
    nodes = [helper.make_node("Conv", [a, "w"], [b], name=b) for a, b in pairwise(names)]
    model = direct(nodes, [tensor("x", (1, 2, 4, 4))], ["t699"], {"w": random(2, 2, 1, 1)})
    tasks, plain = model.graph.tasks, plain_of(model)
    start = time.process_time()
    for i in range(200):
        segment = tasks[i * 700 // 200 : (i + 1) * 700 // 200]
        pieces = [model.graph.whole_piece(task) for task in segment]
        module_of_pieces(model, plain, pieces, [whole(model, segment[-1].name)])
    assert time.process_time() - start < 1
