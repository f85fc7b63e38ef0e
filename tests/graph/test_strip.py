"""Strips need what the rules of their tasks say, no less and no more, and compute what is asked."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.graph.receptive import needed_inputs
from coexec.graph.region import Region
from coexec.model.model import Model
from coexec.pipeline.plan.work import share_strip
from coexec.pipeline.strip import Strip, strip_of
from tests.helpers.network_cases import networks
from tests.helpers.onnx_models import direct, part_feeds, random_feeds, run, tensor, written
from tests.helpers.pipeline_cases import pipeline_plans

examples = settings(max_examples=40, deadline=None)


def strips(model: Model, data: st.DataObject) -> list[Strip]:
    plan = data.draw(pipeline_plans(model.graph, ["A", "B", "C"]))
    return [
        share_strip(model.graph, stage, index)
        for stage in plan.stages
        for index in range(len(stage.shares))
    ]


@given(networks(), st.data())
@examples
def test_regions_are_the_hulls_of_what_is_needed(model: Model, data: st.DataObject) -> None:
    graph = model.graph
    for strip in strips(model, data):
        need = dict(strip.writes)
        for piece in reversed(strip.pieces):
            task = graph.task[piece.task]
            wanted = need.get(task.outputs[0])
            assert any(name in need for name in task.outputs)
            if wanted is not None:
                assert piece.region.contains(wanted)
                cut = set(_cut_axes(graph.output_of(task).whole, piece.region))
                assert all(piece.region.start[a] == wanted.start[a] for a in cut)
                assert all(piece.region.stop[a] == wanted.stop[a] for a in cut)
            for name, region in needed_inputs(graph, task, piece.region).items():
                if region.size:
                    need[name] = need[name].hull(region) if name in need else region
        assert all(need[name] == region for name, region in strip.reads)


def _cut_axes(whole: Region, region: Region) -> list[int]:
    return [
        axis
        for axis, size in enumerate(whole.stop)
        if (region.start[axis], region.stop[axis]) != (0, size)
    ]


@given(networks(), st.data())
@examples
def test_shares_as_models_give_the_whole_answer(model: Model, data: st.DataObject) -> None:
    """Each share runs as an ONNX model of its own, on the regions that it reads."""
    graph, feeds = model.graph, random_feeds(model)
    plan = data.draw(pipeline_plans(graph, ["A", "B", "C"]))
    whole = {name: feeds[name] for name in graph.inputs}
    for stage in plan.stages:
        for index, share in enumerate(stage.shares):
            strip = share_strip(graph, stage, index)
            module = written(model, strip.pieces, strip.writes, strip.reads)
            found = run(module, part_feeds(model, strip.reads, whole))
            for (name, region), values in zip(share.outputs, found, strict=True):
                shape = graph.tensors[name].shape
                whole.setdefault(name, np.full(shape, np.nan, values.dtype))
                whole[name][region.slices] = values
    wanted = run(model.source, feeds)
    for name, values in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_allclose(whole[name], values, rtol=1e-4, atol=1e-4)


def test_halo_and_macs_of_two_convolutions_by_hand() -> None:
    """Rows 4:8 of 8, through two 3x3 windows: 3:8, then 2:8 of the input."""
    from onnx import helper

    weights = {"v": np.ones((2, 1, 3, 3), np.float32), "w": np.ones((1, 2, 3, 3), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["y"], name="one", pads=[1] * 4),
        helper.make_node("Conv", ["y", "w"], ["z"], name="two", pads=[1] * 4),
    ]
    graph = direct(nodes, [tensor("x", (1, 1, 8, 8))], ["z"], weights).graph
    region = Region((0, 0, 4, 0), (1, 1, 8, 8))
    strip = strip_of(graph, graph.tasks, {"z": region})
    assert [(p.task, p.region.start[2], p.region.stop[2]) for p in strip.pieces] == [
        ("one", 3, 8),
        ("two", 4, 8),
    ]
    assert strip.reads == (("x", Region((0, 0, 2, 0), (1, 1, 8, 8))),)
    assert strip.macs == 5 * 8 * 2 * 9 + 4 * 8 * 2 * 9
