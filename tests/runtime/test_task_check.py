"""Every task by itself against ONNX Runtime: opaque parts, pieces, quantised numbers, rounding."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.opened import OpenDevice
from coexec.engines.registry import open_devices
from coexec.graph.graph import Graph, Piece
from coexec.graph.receptive import splittable_axes
from coexec.hardware.hardware import Place
from coexec.lowering.text import text_of
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.plan.schedule import Segment
from coexec.runtime import task_check
from coexec.runtime.compiler import Compiler
from coexec.runtime.task_check import TaskCheck, TaskComparison, pieces_of_plan, whole_tasks
from tests.helpers.core_programs import cpp_name, cpp_options
from tests.helpers.fused_blocks import quantised_network
from tests.helpers.graphs import halves
from tests.helpers.small_models import branches, from_nodes, tensor_info
from tests.model import test_opaque as opaque

CPU = f"cpu:{usable_cores()[0]}"
node = helper.make_node


def compared(
    proto: onnx.ModelProto,
    cache: Path,
    device: str = CPU,
    pieces: Any = whole_tasks,
    feeds: dict[str, Any] | None = None,
) -> list[TaskComparison]:
    model = load(proto)
    devices: tuple[OpenDevice, ...] = open_devices([device], cpp_options())
    segments = pieces(model.graph, [devices[0].engine.place])
    check = TaskCheck(Compiler(model, Cache(cache)), devices, segments)
    found = list(check.compare(random_inputs(model.graph) | (feeds or {})))
    devices[0].close()
    return found


def in_halves(graph: Graph, places: Sequence[Place]) -> list[Segment]:
    """Two pieces of each task that can be divided, along its last axis."""
    pieces = []
    for task in graph.tasks:
        axis = max(splittable_axes(graph, task), default=None)
        whole = graph.whole_piece(task)
        if axis is None or whole.region.stop[axis] == 1:
            pieces.append(whole)
        else:
            regions = halves(graph, task, axis, whole.region.stop[axis] // 2)
            pieces += [Piece(task.name, region) for region in regions]
    plan = Plan.of_places(graph.fingerprint, {places[0]: tuple(pieces)}, Provenance("halves"))
    return pieces_of_plan(graph, plan)


def in_segments(graph: Graph, places: Sequence[Place]) -> Sequence[Segment]:
    """All tasks in one segment, in which the engine may fuse."""
    pieces = tuple(graph.whole_piece(task) for task in graph.tasks)
    plan = Plan.of_places(graph.fingerprint, {places[0]: pieces}, Provenance("single"))
    return derive(plan, graph).segments


@pytest.mark.parametrize("make", opaque.MODELS, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore::coexec.errors.ModelWarning")
def test_opaque_tasks_are_skipped_and_all_others_compared(make: Any, tmp_path: Path) -> None:
    for found in compared(make(), tmp_path, feeds=opaque.FEEDS.get(make.__name__)):
        (task,) = found.tasks
        assert found.verdict == ("skipped" if task.opaque else "equal")
        assert bool(found.difference) == (not task.opaque)


@pytest.mark.parametrize("engine", ["onnxruntime", "cpp"])
def test_pieces_are_compared_with_their_region_of_the_whole(engine: str, tmp_path: Path) -> None:
    device = cpp_name() if engine == "cpp" else CPU
    found = compared(branches(width=2), tmp_path, device, in_halves)
    assert Counter(each.verdict for each in found) == {"equal": len(found)}
    assert sum(each.region is not None for each in found) > len(found) // 2


@pytest.mark.parametrize("engine", ["onnxruntime", "cpp"])
def test_a_segment_is_compared_with_its_tasks_one_by_one(engine: str, tmp_path: Path) -> None:
    device = cpp_name() if engine == "cpp" else CPU
    (found,) = compared(branches(width=2), tmp_path, device, in_segments)
    assert found.verdict == "equal" and len(found.tasks) == len(load(branches(width=2)).graph.tasks)
    assert found.difference is not None and found.name.startswith("stem … ")


def test_numbers_of_8_bits_may_differ_by_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = quantised_network(["conv", "added"])
    steps = 1

    def shifted(session: Any, names: Any, feeds: Any) -> list[Any]:
        results = run_session(session, names, feeds)
        return [
            np.where(r > 100, r - steps, r + steps).astype(r.dtype) if r.dtype.itemsize == 1 else r
            for r in results
        ]

    run_session = task_check.run_session
    monkeypatch.setattr(task_check, "run_session", shifted)
    assert {found.verdict for found in compared(proto, tmp_path)} == {"equal"}
    steps = 2
    assert "differs" in {found.verdict for found in compared(proto, tmp_path)}


def test_random_numbers_are_skipped(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["h"], "relu"),
        node("RandomNormalLike", ["h"], ["r"], "noise"),
        node("Add", ["h", "r"], ["y"], "sum"),
    ]
    ends = tensor_info("x", [4, 5]), tensor_info("y", [4, 5])
    found = compared(from_nodes(nodes, [ends[0]], [ends[1]]), tmp_path)
    assert [each.verdict for each in found] == ["equal", "skipped", "equal"]
    assert found[1].reason == "it draws random numbers"


def test_a_module_is_text_in_the_operators_of_its_engine(tmp_path: Path) -> None:
    model = load(branches(width=1, size=8))
    devices = open_devices([CPU], {})
    check = TaskCheck(
        Compiler(model, Cache(tmp_path)),
        devices,
        whole_tasks(model.graph, [devices[0].engine.place]),
    )
    assert text_of(check._reference()["stem"]).splitlines() == [
        "graph segment_0 (x: 1x3x8x8)",
        "  stem: 1x16x8x8 = Conv(x, stem.w[16x3x3x3], stem.b[16]) {group=1, "
        "pads=[1, 1, 1, 1], auto_pad=NOTSET}  # stem",
        "  stem.r: 1x16x8x8 = Relu(stem)  # stem.relu",
        "return stem.r",
    ]
