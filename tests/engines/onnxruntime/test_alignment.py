"""Channels in whole blocks change nothing that anybody can read."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.onnxruntime.alignment import align, block_of
from coexec.engines.registry import open_devices
from coexec.lowering.lowered_model import LAYOUT
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from tests.helpers.graphs import hand_made
from tests.helpers.onnx_models import random_feeds, run
from tests.helpers.small_models import from_nodes, tensor_info

BLOCK = 8


def cell(channels: int = 12, groups: int = 0) -> onnx.ModelProto:
    """A cell as in NASNet: ``channels`` from pools, additions and convolutions, joined.

    With ``groups`` a grouped convolution reads the result, which cannot be aligned.
    """
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def conv(source: str, name: str, inner: int, outer: int, k: int = 1, group: int = 1) -> str:
        shape = (outer, inner // group, k, k)
        scale = (2 / (k * k * inner // group)) ** 0.5
        weights[f"{name}.w"] = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights[f"{name}.b"] = (rng.standard_normal(outer) * 0.1).astype(np.float32)
        nodes.append(
            helper.make_node(
                "Conv",
                [source, f"{name}.w", f"{name}.b"],
                [name],
                name,
                pads=[k // 2] * 4,
                group=group,
            )
        )
        return name

    def op(kind: str, name: str, *sources: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, list(sources), [name], name, **attributes))
        return name

    c = channels
    stem = op("Relu", "stem.r", conv("x", "stem", 3, c, 3))
    deep = conv(conv(stem, "deep", c, c, 3, group=c), "point", c, c)
    mean = op("AveragePool", "mean", stem, kernel_shape=[3, 3], pads=[1] * 4)
    most = op("MaxPool", "most", stem, kernel_shape=[3, 3], pads=[1] * 4)
    for index in range(1, 5):
        weights[f"bn{index}"] = rng.uniform(0.5, 1.5, c).astype(np.float32)
    normal = op("BatchNormalization", "normal", most, *(f"bn{i}" for i in range(1, 5)))
    total = op("Add", "total", mean, normal)
    cut = op("Mul", "cut", op("Sigmoid", "gate", deep), total)
    op("Concat", "joined", deep, total, cut, axis=1)
    last = conv("joined", "last", 3 * c, 2 * c, 3, group=groups or 1)
    op("GlobalAveragePool", "pooled", last)
    op("Flatten", "y", "pooled")
    outputs = [tensor_info("y", [1, 2 * c]), tensor_info("joined", [1, 3 * c, 10, 10])]
    return from_nodes(nodes, [tensor_info("x", [1, 3, 10, 10])], outputs, weights)


@pytest.mark.parametrize("groups", [0, 4])
def test_aligned_models_compute_the_same(groups: int) -> None:
    model = load(cell(groups=groups))
    borders = [name for task in model.graph.tasks for name in task.outputs]
    before = ir.to_proto(model.source).SerializeToString()
    aligned = align(model.source, borders, BLOCK)
    assert ir.to_proto(model.source).SerializeToString() == before, "the model was changed"
    joined = next(n for n in aligned.graph if n.op_type == "Concat").outputs[0]
    assert joined.shape is not None and joined.shape[1] == 3 * 16
    layouts = {n.outputs[0].name for n in aligned.graph if (n.name or "").startswith(LAYOUT)}
    assert layouts >= {"joined", "total", "point"}
    assert [v.name for v in aligned.graph.outputs] == ["y", "joined"]
    feeds = random_feeds(model)
    for found, expected in zip(run(aligned, feeds), run(model.source, feeds), strict=True):
        assert found.shape == expected.shape and worst_difference(found, expected) < 1e-6


def crossed(parts: dict[str, list[int]]) -> onnx.ModelProto:
    """Convolutions joined to ``parts``, those added, a depthwise convolution, and another."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def conv(source: str, name: str, shape: tuple[int, ...], **attributes: int) -> str:
        weights[f"{name}.w"] = rng.standard_normal(shape).astype(np.float32)
        nodes.append(helper.make_node("Conv", [source, f"{name}.w"], [name], name, **attributes))
        return name

    joined = []
    for name, counts in parts.items():
        made = [conv("x", f"{name}{i}", (n, 3, 1, 1)) for i, n in enumerate(counts)]
        if len(made) > 1:
            nodes.append(helper.make_node("Concat", made, [name], name, axis=1))
            made = [name]
        joined += made
    total = sum(next(iter(parts.values())))
    nodes.append(helper.make_node("Add", joined, ["sum"], "sum"))
    conv("sum", "deep", (total, 1, 1, 1), group=total)
    conv("deep", "y", (16, total, 1, 1))
    return from_nodes(
        nodes, [tensor_info("x", [1, 3, 6, 6])], [tensor_info("y", [1, 16, 6, 6])], weights
    )


@pytest.mark.parametrize(
    ("parts", "aligned_channels"),
    [
        ({"a": [6, 6], "b": [12]}, 16),  # what is added to a Concat has its gaps
        ({"a": [12], "b": [6, 6]}, 16),
        ({"a": [6, 6], "b": [6, 6]}, 16),
        ({"a": [10], "b": [10]}, 16),  # not a multiple of four: nothing else would align it
        ({"a": [6, 6], "b": [5, 7]}, 12),  # gaps at two places cannot be added
        ({"a": [6, 6, 6], "b": [5, 7, 6]}, 18),
        ({"a": [3, 9], "b": [12]}, 12),  # too little for a block of its own
    ],
)
def test_what_is_added_has_its_channels_at_the_same_places(
    parts: dict[str, list[int]], aligned_channels: int
) -> None:
    model = load(crossed(parts))
    borders = [name for task in model.graph.tasks for name in task.outputs]
    aligned = align(model.source, borders, BLOCK)
    total = next(n for n in aligned.graph if n.op_type == "Add").outputs[0]
    assert total.shape is not None and total.shape[1] == aligned_channels
    feeds = random_feeds(model)
    for found, expected in zip(run(aligned, feeds), run(model.source, feeds), strict=True):
        assert found.shape == expected.shape and worst_difference(found, expected) < 1e-5


def test_only_where_a_concat_breaks_blocks() -> None:
    for channels in (8, 16):
        source = load(cell(channels)).source
        assert align(source, [], BLOCK) is source
    source = load(cell(12)).source
    assert align(source, [], 4) is source and align(source, [], 1) is source


def test_every_border_can_be_crossed(cache: Cache) -> None:
    """Each task in a segment of its own, on two devices in turns: aligned tensors cross as such."""
    block = block_of(cache.root)
    if block == 1:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    proto = cell(block + block // 2)
    model, devices = load(proto), open_devices([f"cpu:{core}" for core in usable_cores()[:2]])
    names = [d.spec.name for d in devices]
    graph = model.graph
    order = {
        name: tuple(graph.whole_piece(t) for i, t in enumerate(graph.tasks) if i % 2 == number)
        for number, name in enumerate(names)
    }
    plan = hand_made(graph, order, "onnxruntime")
    compiled = Compiler(model, cache).compile(derive(plan, graph), devices)
    crossing = {t.name: t.shape for module in compiled.modules for t in module.inputs}
    assert any(len(s) == 4 and s[1] == 3 * 2 * block for s in crossing.values()), crossing
    (apart,) = (m for m in compiled.modules if "Gather" in m.operators)
    assert "joined" in {t.name for t in apart.outputs}
    feeds = random_inputs(graph)
    with Executor(compiled, devices) as executor:
        found = executor.run(feeds)
    for name, array in zip(["y", "joined"], plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(found[name], array) < 1e-5
