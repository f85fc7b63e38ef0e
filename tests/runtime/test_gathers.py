"""What a segment reads put together: which boxes are copied, and from where to where."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.graph.graph import Piece
from coexec.model.load import load
from coexec.model.model import Model
from coexec.plan.derive import derive
from coexec.runtime.allocation import allocated
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.linking import LinkedPlan
from coexec.runtime.loaded_plan import LoadedPlan
from coexec.runtime.recorder import Recorder
from coexec.runtime.steps import CallPython, CopyBox
from coexec.runtime.twin_team import TwinTeam
from tests.helpers.graphs import halves, halves_by_rows, hand_made
from tests.helpers.onnx_models import random_feeds, run
from tests.helpers.small_models import branches, from_nodes, tensor_info
from tests.runtime.test_executor import Elsewhere, reference


def in_rows(model: Model, devices: Sequence[OpenDevice], cache: Cache) -> CompiledPlan:
    """All feature maps are split by rows between two devices, the rest is the first one's."""
    graph = model.graph
    order = halves_by_rows(graph, [device.spec.name for device in devices])
    return Compiler(model, cache).compile(
        derive(hand_made(graph, order, "reference"), graph), devices
    )


def linked(compiled: CompiledPlan, devices: Sequence[OpenDevice], feeds: Any) -> LinkedPlan:
    loaded = LoadedPlan(compiled, devices, tensor_caching=True)
    return LinkedPlan(loaded, allocated(loaded), feeds, lambda threads: TwinTeam(threads, 0.0))


def copying(plan: LinkedPlan, device: int) -> tuple[list[CopyBox], list[str]]:
    """The copies of a device that the loop carries out, and the names of its Python functions."""
    steps = [step.step for step in plan.programs(launches_natively=True)[device]]
    functions = [step.function.__qualname__ for step in steps if isinstance(step, CallPython)]
    return [step for step in steps if isinstance(step, CopyBox)], functions


def test_boxes_of_the_host_s_memory_are_copied_by_the_loop(cache: Cache) -> None:
    """Those of the caller's arrays, too: their addresses count from what a run is given."""
    devices = [OpenDevice.of(ReferenceEngine(*reference(number))) for number in range(2)]
    model = load(branches(width=2))
    feeds = random_feeds(model)
    plan = linked(in_rows(model, devices, cache), devices, feeds)
    for device in range(2):
        copies, functions = copying(plan, device)
        assert {copy.source.slot for copy in copies} == {-1, 0}
        assert not any("fetch" in name for name in functions)
        for copy in copies:
            assert copy.target.slot == -1 and copy.run_bytes > 0
    assert plan.begin(feeds, Recorder()) == [array.ctypes.data for array in feeds.values()]


def test_each_run_puts_its_own_values_together(cache: Cache) -> None:
    devices = [OpenDevice.of(ReferenceEngine(*reference(number))) for number in range(2)]
    model = load(branches(width=2))
    with Executor(in_rows(model, devices, cache), devices) as executor:
        for seed in range(3):
            feeds = {n: a + np.float32(seed) for n, a in random_feeds(model).items()}
            found = executor.run(feeds)
            for name, array in zip(model.graph.outputs, run(model.source, feeds), strict=True):
                np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def test_what_lies_in_other_memories_is_fetched_by_its_engine(cache: Cache) -> None:
    devices = [OpenDevice.of(ReferenceEngine(*reference(0))), OpenDevice.of(Elsewhere())]
    model = load(branches(width=2))
    plan = linked(in_rows(model, devices, cache), devices, random_feeds(model))
    copies, functions = copying(plan, 1)
    assert not copies and any("fetch" in name for name in functions)


class InVectors(ReferenceEngine):
    """Reads and writes at multiples of 64 bytes."""

    alignment = 64


@pytest.mark.parametrize("kind", [ReferenceEngine, InVectors])
def test_a_part_begins_where_its_readers_can_read_it(
    kind: type[ReferenceEngine], cache: Cache
) -> None:
    """The second half of a tensor, which begins at its byte 36, is read by the other device."""
    first, second = ReferenceEngine(*reference(0)), kind(*reference(1))
    devices = [OpenDevice.of(first), OpenDevice.of(second)]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "A"),
        helper.make_node("Neg", ["a"], ["b"], "B"),
        helper.make_node("Softmax", ["a"], ["c"], "C", axis=1),
    ]
    ends = [tensor_info(name, [1, 2, 3, 3]) for name in "xbc"]
    graph = (model := load(from_nodes(nodes, ends[:1], ends[1:]))).graph
    a, b, c = graph.tasks
    upper, lower = halves(graph, a, 1, 1)
    order = {
        first.device.name: [Piece(a.name, lower), Piece(b.name, upper), graph.whole_piece(c)],
        second.device.name: [Piece(a.name, upper), Piece(b.name, lower)],
    }
    schedule = derive(hand_made(graph, order, "reference"), graph)
    compiled = Compiler(model, cache).compile(schedule, devices)
    allocation = allocated(LoadedPlan(compiled, devices, tensor_caching=True))
    (whole,) = (reading for reading in allocation.gathers if reading[1].startswith("a,"))
    assert (whole in allocation.in_place) == (second.alignment == 1), "or the halves are copied"
    for segment, module in zip(compiled.segments, compiled.modules, strict=True):
        if segment.device == second.device.name:
            for tensor in (*module.inputs, *module.outputs):
                if tensor.name in allocation.static:
                    array = allocation.static[tensor.name]
                    assert array.__array_interface__["data"][0] % second.alignment == 0
