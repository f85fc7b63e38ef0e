"""Plans that split tasks by any axis, also in chains with a halo, equal the whole model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.engines.registry import open_devices
from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.receptive import needed_inputs, splittable_axes
from coexec.graph.region import Region
from coexec.hardware.hardware import System
from coexec.lowering.layout import blocks_of
from coexec.lowering.module import Module
from coexec.model.difference import is_rounding, worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.model import Model
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance, verify_plan
from coexec.research.zoo.layers import Layers
from coexec.runtime.compiled import load_compiled, save_compiled
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from tests.helpers.ahead import AheadEngine
from tests.helpers.core_programs import cpp_name, cpp_options
from tests.helpers.examples import scaled
from tests.helpers.graphs import halves, halves_by_rows, hand_made
from tests.helpers.network_cases import BLOCKS, FEW, networks
from tests.helpers.onnx_models import direct, random_feeds, run, tensor
from tests.helpers.small_models import branches
from tests.runtime.test_executor import Elsewhere, reference

Draw = Any
CORES = usable_cores()[:2]


@st.composite
def split_plans(draw: Draw, graph: Graph, names: Sequence[str], engines: Mapping[str, str]) -> Plan:
    """Each task whole on a device, split between both, or in a chain with those before it, whose
    first rows are computed on both sides of the cut."""
    order: dict[str, list[Piece]] = {name: [] for name in names}
    tasks = list(graph.tasks)
    while tasks:
        chain = chain_of(graph, tasks, draw(st.integers(1, 3)))
        del tasks[: len(chain)]
        axes = [a for a in splittable_axes(graph, chain[-1]) if len(chain) == 1 or a == 2]
        axis = draw(st.sampled_from([*axes, None]))
        if axis is None:
            order[draw(st.sampled_from(names))] += [graph.whole_piece(task) for task in chain]
            continue
        size = graph.output_of(chain[-1]).shape[axis]
        cuts = st.integers(1, size - 1)
        if axis == 1 and size > 4:  # where blocks of channels end, as planners cut, or anywhere
            cuts |= st.sampled_from(range(4, size, 4))
        parts = halves(graph, chain[-1], axis, draw(cuts))
        sides = [strip(graph, chain, part) for part in parts]
        if set(sides[0]) & set(sides[1]):  # nothing is computed twice by two devices
            order[names[0]] += [graph.whole_piece(task) for task in chain]
            continue
        for name, side in zip(draw(st.permutations(names)), sides, strict=True):
            order[name] += side
    plan = hand_made(graph, order, "")
    return Plan(
        plan.model,
        plan.order,
        {p: engines[plan.device_of[p]] for p in plan.device_of},
        plan.provenance,
    )


def chain_of(graph: Graph, tasks: Sequence[Task], most: int) -> list[Task]:
    """The first task with those behind it that read only the one before, which nobody else does."""
    chain = [tasks[0]]
    for task in tasks[1:most]:
        (end, *others) = chain[-1].outputs
        alone = sum(end in other.inputs for other in graph.tasks) == 1
        if others or end in graph.outputs or not alone or task.inputs != (end,):
            break
        if 2 not in splittable_axes(graph, task) or 2 not in splittable_axes(graph, chain[-1]):
            break
        chain.append(task)
    return chain


def strip(graph: Graph, chain: Sequence[Task], region: Region) -> list[Piece]:
    """What one device computes of a chain so that it needs nothing of the other inside."""
    pieces = []
    for task in reversed(chain):
        pieces.append(Piece(task.name, region))
        region = needed_inputs(graph, task, region).get(task.inputs[0], region)
    return pieces[::-1]


def check(model: Model, devices: Sequence[OpenDevice], plan: Plan, tolerance: float) -> None:
    graph = model.graph
    verify_plan(plan, graph, System(tuple(d.spec for d in devices)))
    schedule, feeds = derive(plan, graph), random_feeds(model)
    requests = [feeds, {name: np.flip(array).copy() for name, array in feeds.items()}]
    answers = [answer(model, feeds) for feeds in requests]
    with TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        made = Compiler(model, cache).compile(schedule, devices)
        ways = [made]
        if all(module.weights.keys() <= module.stored.keys() for module in made.modules):
            ways.append(load_compiled(save_compiled(made, {}), cache.weights)[0])
        for compiled in ways:  # large weights of a model that no engine rewrites lie in no cache
            with Executor(compiled, devices) as executor:
                # Memory is used again for other values.
                for feeds, (expected, rounding) in zip(requests, answers, strict=True):
                    found = executor.run(feeds)
                    for name, array in expected.items():
                        worst = worst_difference(found[name], array)
                        assert worst <= tolerance or is_rounding(worst, rounding[name])


def answer(
    model: Model, feeds: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The right outputs, and by how much ONNX Runtime's own optimisations change them: where sums
    cancel, other kernels round in another way."""
    outputs = model.graph.outputs
    expected = dict(zip(outputs, run(model.source, feeds), strict=True))
    optimised = plain_session(model.source).run(outputs, feeds)
    answers = zip(outputs, optimised, strict=True)
    return expected, {name: worst_difference(array, expected[name]) for name, array in answers}


def drawn(
    devices: Sequence[OpenDevice],
    tolerance: float,
    count: int,
    filters: st.SearchStrategy[int] = FEW,
) -> None:
    @settings(max_examples=scaled(count), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def equal(data: st.DataObject) -> None:
        model = data.draw(networks(filters))
        names = [d.spec.name for d in devices]
        engines = {d.spec.name: d.engine.info.name for d in devices}
        check(model, devices, data.draw(split_plans(model.graph, names, engines)), tolerance)

    equal()


needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="one core: there is one CPU device")


@pytest.mark.sampled(2)
@needs_two_cores
@pytest.mark.parametrize("filters", [FEW, BLOCKS], ids=["few", "blocks"])
def test_two_clusters(filters: st.SearchStrategy[int]) -> None:
    drawn(open_devices([f"cpu:{core}" for core in CORES]), 1e-5, 40, filters)


def test_a_memory_of_its_own() -> None:
    near = OpenDevice.of(ReferenceEngine(*reference(0)))
    drawn([near, OpenDevice.of(Elsewhere())], 1e-5, 20)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("far", [ReferenceEngine, AheadEngine, Elsewhere])
def test_launched_ahead(far: Any) -> None:
    """Whatever the other device is, nothing is read before it is there, or written while it is
    read."""
    others = {
        ReferenceEngine: lambda: ReferenceEngine(*reference(0)),
        AheadEngine: lambda: AheadEngine(0),
        Elsewhere: Elsewhere,
    }
    drawn([OpenDevice.of(others[far]()), OpenDevice.of(AheadEngine(2))], 1e-5, 20)


def test_a_gpu_that_meets_the_host_at_words() -> None:
    pytest.importorskip("pyopencl")
    from tests.helpers.fake_cuda import fake_cuda

    with fake_cuda() as gpu:
        drawn([OpenDevice.of(ReferenceEngine(*reference(0))), OpenDevice.of(gpu)], 1e-4, 6)


@pytest.mark.sampled(2)
@needs_two_cores
@pytest.mark.parametrize("filters", [FEW, BLOCKS], ids=["few", "blocks"])
def test_cpp_beside_onnx_runtime(filters: st.SearchStrategy[int], cache: Cache) -> None:
    names = [f"cpu:{CORES[0]}", cpp_name()]
    drawn(open_devices(names, cpp_options(), cache.root), 1e-4, 4, filters)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("filters", [FEW, BLOCKS], ids=["few", "blocks"])
def test_a_gpu_beside_onnx_runtime(filters: st.SearchStrategy[int], gpu: str, cache: Cache) -> None:
    drawn(open_devices([f"cpu:{CORES[0]}", gpu], folder=cache.root), 1e-4, 4, filters)


@needs_two_cores
def test_feature_maps_cross_between_engines_as_they_lie(cache: Cache) -> None:
    """Split by channels, ONNX Runtime and cpp write one buffer in common blocks."""
    devices = open_devices([f"cpu:{CORES[0]}", cpp_name()], cpp_options(), cache.root)
    ours, theirs = (device.engine.dialect.block for device in devices)
    if ours != theirs:
        pytest.skip(f"blocks of {ours} and {theirs} channels: nothing is in common")
    convs = [
        helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], f"c{i}", pads=[1] * 4)
        for i in range(6)
    ]
    weight = np.random.default_rng(1).normal(0, 0.1, (2 * ours, 2 * ours, 3, 3))
    model = direct(
        convs, [tensor("t0", (1, 2 * ours, 9, 9))], ["t6"], {"w": weight.astype(np.float32)}
    )
    graph = model.graph
    order: dict[str, list[Piece]] = {device.spec.name: [] for device in devices}
    for task in graph.tasks:
        for own, half in zip(order.values(), halves(graph, task, 1, ours), strict=True):
            own.append(Piece(task.name, half))
    places = {d.engine.place: tuple(order[d.spec.name]) for d in devices}
    plan = Plan.of_places(graph.fingerprint, places, Provenance("by hand"))
    compiled = Compiler(model, cache).compile(derive(plan, graph), devices)
    inner = [m for m in compiled.modules if not {"t0", "t6"} & names_of(m)]
    assert len(inner) == 8 and all({*m.layouts.values()} == {blocks_of(ours)} for m in inner)
    assert not any("Reorder" in kind for m in inner for kind in m.operators)
    arch = devices[1].engine.arch  # type: ignore[attr-defined]
    from coexec.engines.kernels.building import build as build_kernels

    kernels = [
        launch.name
        for m in inner
        if "Conv" in m.operators
        for launch in build_kernels(m, arch, on_arrays=True).launches
    ]
    assert kernels and "reorder" not in kernels
    feeds = random_feeds(model)
    recorder = RealRecorder(compiled, list(order))
    with Executor(compiled, devices) as executor:
        found = executor.run(feeds, recorder)
    assert not [s for s in recorder.trace().spans if s.kind == "transfer" and s.source and s.target]
    assert worst_difference(found["t6"], run(model.source, feeds)[0]) < 1e-4


def joined_with_gaps(block: int) -> Model:
    """Where the channels of a Concat fill whole blocks, but those of its parts do not: ONNX
    Runtime's lowered model has gaps between them."""
    half = block * 3 // 2
    nodes = [helper.make_node("Conv", ["x", f"w{i}"], [f"part{i}"], f"c{i}") for i in range(2)]
    nodes += [
        helper.make_node("Concat", ["part0", "part1"], ["joined"], "joined", axis=1),
        helper.make_node("MaxPool", ["joined"], ["most"], "most", kernel_shape=[1, 1]),
        helper.make_node("Conv", ["most", "w2"], ["y"], "last"),
    ]
    random = np.random.default_rng(0)
    shapes = {"w0": (half, 3, 1, 1), "w1": (half, 3, 1, 1), "w2": (block, 2 * half, 1, 1)}
    weights = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return direct(nodes, [tensor("x", (1, 3, 6, 6))], ["y"], weights)


@needs_two_cores
@pytest.mark.parametrize("first", [0, 1])
def test_gaps_between_channels_do_not_cross_to_another_engine(first: int, cache: Cache) -> None:
    devices = open_devices([f"cpu:{CORES[0]}", cpp_name()], cpp_options(), cache.root)
    model = joined_with_gaps(max(devices[0].engine.dialect.block, 8))
    graph = model.graph
    order: dict[int, list[Piece]] = {0: [], 1: []}
    for task in graph.tasks:
        order[first if task.name != "last" else 1 - first].append(graph.whole_piece(task))
    places = {devices[i].engine.place: tuple(pieces) for i, pieces in order.items()}
    plan = Plan.of_places(graph.fingerprint, places, Provenance("by hand"))
    check(model, devices, plan, 1e-4)


@needs_two_cores
@pytest.mark.parametrize("blocks", [1, 2])
def test_channels_behind_gaps_are_cut_in_the_models_layout(blocks: int) -> None:
    devices = open_devices([f"cpu:{core}" for core in CORES])
    block = max(devices[0].engine.dialect.block, 8)
    model = joined_with_gaps(block)
    graph, names = model.graph, [d.spec.name for d in devices]
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for task in graph.tasks:
        if task.name != "most":
            order[names[0]].append(graph.whole_piece(task))
            continue
        for name, half in zip(names, halves(graph, task, 1, blocks * block), strict=True):
            order[name].append(Piece(task.name, half))
    check(model, devices, hand_made(graph, order, "onnxruntime"), 1e-5)


def gated_with_gaps(block: int) -> Model:
    """A Concat with gaps whose parts ONNX Runtime does not keep in blocks: it has no blocked
    product of a feature map and a number for each channel."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["map"], "map"),
        helper.make_node("GlobalAveragePool", ["map"], ["gate"], "gate"),
        helper.make_node("Mul", ["map", "gate"], ["gated"], "gated"),
        helper.make_node("Add", ["map", "map"], ["twice"], "twice"),
        helper.make_node("Concat", ["twice", "gated"], ["y"], "joined", axis=1),
    ]
    weight = np.random.default_rng(0).standard_normal((block * 3 // 2, 3, 1, 1))
    weights = {"w": weight.astype(np.float32)}
    return direct(nodes, [tensor("x", (1, 3, 6, 6))], ["y"], weights)


@needs_two_cores
@pytest.mark.parametrize("there", ["joined", "gate", "gated", "gate joined"])
def test_channels_that_fill_blocks_cross_to_nobody(there: str) -> None:
    devices = open_devices([f"cpu:{core}" for core in CORES])
    model = gated_with_gaps(max(devices[0].engine.dialect.block, 8))
    graph, names = model.graph, [d.spec.name for d in devices]
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for task in graph.tasks:
        order[names[task.name in there.split()]].append(graph.whole_piece(task))
    check(model, devices, hand_made(graph, order, "onnxruntime"), 1e-5)


@needs_two_cores
@pytest.mark.parametrize("axis", [1, 2])
def test_a_part_that_fills_blocks_is_cut(axis: int) -> None:
    devices = open_devices([f"cpu:{core}" for core in CORES])
    block = max(devices[0].engine.dialect.block, 8)
    model = gated_with_gaps(block)
    graph, names = model.graph, [d.spec.name for d in devices]
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for task in graph.tasks:
        if task.name != "gated":
            order[names[0]].append(graph.whole_piece(task))
            continue
        at = block if axis == 1 else 2
        for name, half in zip(names, halves(graph, task, axis, at), strict=True):
            order[name].append(Piece(task.name, half))
    check(model, devices, hand_made(graph, order, "onnxruntime"), 1e-5)


def names_of(module: Module) -> set[str]:
    """The tensors that a module's inputs and outputs are parts of."""
    return {t.name.partition("[")[0] for t in (*module.inputs, *module.outputs)}


@needs_two_cores
def test_channels_of_vgg16_cross_as_they_lie(cache: Cache) -> None:
    """Split by channels, no operator between its convolutions joins, cuts or changes the layout."""
    devices = open_devices([f"cpu:{core}" for core in CORES])
    # At half of its channels and without the dense layers, which hold nearly all of its weights.
    builder = Layers("vgg16", [1, 3, 32, 32])
    value = builder.input
    for number, (channels, depth) in enumerate([(32, 2), (64, 2), (128, 3), (256, 3), (256, 3)]):
        for layer in range(depth):
            value = builder.conv_relu(value, f"stage{number}/layer{layer}", channels, 3, pad=1)
        value = builder.max_pool(value, f"stage{number}/pool", 2, stride=2)
    model = load(builder.finish(value, "features"))
    graph = model.graph
    names = [d.spec.name for d in devices]
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for task in graph.tasks:
        shape = graph.output_of(task).shape
        if len(shape) == 4 and 1 in splittable_axes(graph, task):
            for name, half in zip(names, halves(graph, task, 1, shape[1] // 2), strict=True):
                order[name].append(Piece(task.name, half))
        else:
            order[names[0]].append(graph.whole_piece(task))
    plan = hand_made(graph, order, "onnxruntime")
    compiled = Compiler(model, cache).compile(derive(plan, graph), devices)
    convolutions = 0
    for kinds in (list(m.operators) for m in compiled.modules if "nchwc.Conv" in m.operators):
        convolutions += kinds.count("nchwc.Conv")
        last = len(kinds) - kinds[::-1].index("nchwc.Conv")
        assert set(kinds[:last]) <= {"nchwc.Conv", "nchwc.MaxPool"}
    assert convolutions == 26
    assert not any(
        {"Concat", "Slice", "nchwc.ReorderInput"} & set(m.operators) for m in compiled.modules
    )


def test_only_what_is_read_moves(cache: Cache) -> None:
    """The bytes of a trace are those of the schedule's transfers."""
    near, far = OpenDevice.of(ReferenceEngine(*reference(0))), OpenDevice.of(Elsewhere())
    devices = [near, far]
    model = load(branches(width=2))
    graph = model.graph
    order = halves_by_rows(graph, [device.spec.name for device in devices])
    schedule = derive(hand_made(graph, order, "reference"), graph)
    compiled = Compiler(model, cache).compile(schedule, devices)
    recorder = RealRecorder(compiled, list(order))
    with Executor(compiled, devices) as executor:
        executor.run(random_inputs(graph), recorder)
    moved = [s for s in recorder.trace().spans if s.kind == "transfer"]
    between = sum(s.size_bytes for s in moved if s.source is not None and s.target is not None)
    assert between == sum(t.size_bytes for t in schedule.transfers) > 0
