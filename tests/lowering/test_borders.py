"""A compiled plan has borders only where its segments exchange something."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from coexec.cache import Cache
from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.engines.registry import open_devices
from coexec.graph.graph import Task
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.model import Model
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive, stepwise
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from tests.helpers.fused_blocks import IMAGES, WORDS, in_half, network, quantised_network
from tests.helpers.graphs import hand_made

NETWORKS = {
    "images": network(["silu", "hard_swish", "residual", "excited", "silu"], IMAGES),
    "words": network(["layer_norm", "gelu", "attention", "skip", "silu"], WORDS),
    "halves": in_half(network(["silu", "residual", "excited", "silu"], IMAGES)),
    "halves of words": in_half(network(["layer_norm", "attention", "skip", "silu"], WORDS)),
    "quantised": quantised_network(["conv", "added", "joined", "pooled", "conv"]),
}


def optimised(proto: onnx.ModelProto, folder: Path) -> Counter[str]:
    """The operators that ONNX Runtime makes of the whole model."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    nodes = onnx.load(str(folder / "optimised.onnx")).graph.node
    return Counter(f"{n.domain.rpartition('.')[2]}.{n.op_type}".lstrip(".") for n in nodes)


def compiled(
    model: Model, cache: Cache, device_of: Callable[[Task], int]
) -> tuple[CompiledPlan, dict[str, np.ndarray]]:
    """The plan that runs each task on the device of this number, and its outputs."""
    devices = open_devices([f"cpu:{core}" for core in usable_cores()[:2]])
    graph = model.graph
    pieces = {d.spec.name: [] for d in devices}
    for task in graph.tasks:
        pieces[devices[device_of(task)].spec.name].append(graph.whole_piece(task))
    plan = hand_made(graph, pieces, "onnxruntime")
    made = Compiler(model, cache).compile(derive(plan, graph), devices)
    with Executor(made, devices) as executor:
        return made, executor.run(random_inputs(graph))


def operators(plan: CompiledPlan) -> Counter[str]:
    return Counter(kind for module in plan.modules for kind in module.operators)


def without_reshapes(found: Counter[str]) -> Counter[str]:
    """A Reshape goes where another one is beside it, which is no fusion."""
    return Counter({kind: count for kind, count in found.items() if kind != "Reshape"})


@pytest.mark.parametrize("name", NETWORKS)
def test_one_segment_is_what_the_engine_makes_of_the_model(
    name: str, cache: Cache, tmp_path: Path
) -> None:
    proto = NETWORKS[name]
    model = load(proto)
    plan, found = compiled(model, cache, lambda task: 0)
    assert len(plan.modules) == 1 and operators(plan) == optimised(proto, tmp_path)
    (expected,) = plain_session(proto).run(None, random_inputs(model.graph))
    assert np.array_equal(found["y"], expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_borders_between_blocks_stop_nothing(name: str, cache: Cache, tmp_path: Path) -> None:
    """Nothing is computed twice either: blocked and NHWC tensors pass from segment to segment."""
    proto = NETWORKS[name]
    model = load(proto)
    plan, found = compiled(model, cache, lambda task: block_of(task) % 2)
    assert len(plan.modules) > 4 and operators(plan) == optimised(proto, tmp_path)
    (expected,) = plain_session(proto).run(None, random_inputs(model.graph))
    assert worst_difference(found["y"], expected) < 1e-6


def test_transposes_that_onnx_runtime_moves_into_its_blocks(cache: Cache) -> None:
    """Exports of TensorFlow scale in NHWC between convolutions. ReorderInput and ReorderOutput take
    the Transposes in; a border between them and their tensors must not lose them."""
    random = np.random.default_rng(0)
    node = onnx.helper.make_node
    nodes = [
        node("Transpose", ["x"], ["x1"], perm=[0, 3, 1, 2]),
        node("Conv", ["x1", "w"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
        node("Sub", ["b", "mean"], ["c"]),
        node("Transpose", ["c"], ["d"], perm=[0, 3, 1, 2]),
        node("Conv", ["d", "w"], ["e"]),
        node("Transpose", ["e"], ["y"], perm=[0, 2, 3, 1]),
    ]
    sizes = {"w": (32, 32, 1, 1), "mean": (1, 1, 1, 32)}
    weights = [
        onnx.numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n)
        for n, s in sizes.items()
    ]
    info = partial(onnx.helper.make_tensor_value_info, elem_type=1, shape=[1, 5, 7, 32])
    imports = [onnx.helper.make_opsetid("", 17)]
    proto = make_model(nodes, [info("x")], [info("y")], imports, weights)
    model = load(proto)
    (expected,) = plain_session(proto).run(None, random_inputs(model.graph))
    for first in range(len(model.graph.tasks) + 1):
        later = {task.name for task in model.graph.tasks[first:]}
        _, found = compiled(model, cache, lambda task, later=later: int(task.name in later))
        assert worst_difference(found["y"], expected) < 1e-6


def block_of(task: Task) -> int:
    """The number of the block that a task belongs to."""
    block = task.operators[-1].outputs[0].partition(".")[0]
    return int(block) if block.isdigit() else 0


def test_the_profiler_cuts_every_task_apart(cache: Cache) -> None:
    model = load(NETWORKS["words"])
    devices = open_devices([f"cpu:{usable_cores()[0]}"])
    place = devices[0].engine.place
    steps = stepwise(model.graph, {task.name: place for task in model.graph.tasks})
    plan = Compiler(model, cache).compile(steps, devices)
    assert all(module.operators for module in plan.modules)
    plan, _ = compiled(model, cache, lambda task: 0)
    assert len(plan.modules) == 1, "what is lowered for the profiler is not taken for a plan"


def test_a_segment_reads_nothing_that_it_does_not_wait_for(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer that computes ``b`` from ``a`` is not followed: the plan does not know."""
    info = partial(onnx.helper.make_tensor_value_info, elem_type=1, shape=[4])
    node = onnx.helper.make_node
    imports = [onnx.helper.make_opsetid("", 17)]
    given = [node("Neg", ["x"], ["a"]), node("Exp", ["x"], ["b"]), node("Mul", ["a", "b"], ["y"])]
    model = load(make_model(given, [info("x")], [info("y")], imports))
    written = [
        node("Neg", ["x"], ["A"]),
        node("Neg", ["A"], ["minus"]),
        node("Exp", ["minus"], ["B"]),
        node("Mul", ["A", "B"], ["y"]),
        node("Identity", ["A"], ["border:a"], name="layout:a"),
        node("Identity", ["B"], ["border:b"], name="layout:b"),
    ]
    followed = make_model(
        written, [info("x")], [info("y"), info("border:a"), info("border:b")], imports
    )

    def lower(engine: OpenEngine, source: object, borders: object, folder: Path) -> Path:
        onnx.save(followed, str(folder / "lowered.onnx"))
        return folder / "lowered.onnx"

    engine = type(open_devices([f"cpu:{usable_cores()[0]}"])[0].engine)
    monkeypatch.setattr(engine, "lower", lower)
    plan, found = compiled(model, cache, lambda task: task.operators[0].op_type == "Exp")
    own = [
        (segment.after, [t.name for t in m.inputs])
        for segment, m in zip(plan.segments, plan.modules, strict=True)
        if "Exp" in m.operators
    ]
    assert own == [((), ["x"])]
    x = random_inputs(model.graph)["x"]
    assert np.allclose(found["y"], -x * np.exp(x), rtol=1e-6)


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    imports: list[onnx.OperatorSetIdProto],
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = onnx.helper.make_graph(nodes, "hand made", inputs, outputs, weights)
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=9)
