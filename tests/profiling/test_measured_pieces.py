"""Parts of tasks are measured in place, and count before any prediction."""

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.cache import Cache
from coexec.engines.opened import OpenDevice
from coexec.graph.graph import Task, Tensor
from coexec.graph.stitch import missing
from coexec.hardware.hardware import EngineInfo
from coexec.model.load import load
from coexec.profiling import profiler
from coexec.profiling.pieces import cuttings
from coexec.profiling.profiler import Profiler
from coexec.profiling.store import ProfileStore
from coexec.runtime.compiler import Compiler
from coexec.settings import Effort
from tests.helpers.clocked import BYTE_S, Clocked
from tests.helpers.network_cases import networks
from tests.helpers.small_models import branches, from_nodes, tensor_info


@settings(deadline=None, derandomize=True, database=None, max_examples=30)
@given(st.data())
def test_parts_of_each_cutting_are_the_whole(data: st.DataObject) -> None:
    graph = data.draw(networks()).graph
    for cutting in cuttings(graph):
        assert cutting.keys() == {task.name for task in graph.tasks}
        for name, regions in cutting.items():
            whole = graph.output_of(graph.task[name]).whole
            assert not missing(whole, regions)
            assert sum(region.size for region in regions) == whole.size


def test_a_measured_part_counts_and_is_measured_once(tmp_path: Path, cache: Cache) -> None:
    model = load(branches())
    graph, engine = model.graph, Clocked()
    with ProfileStore(tmp_path) as store:
        profiler = Profiler([OpenDevice.of(engine)], store, effort=Effort(0, 2, 2))
        compiler = Compiler(model, cache)
        assert not profiler.cost(compiler).pieces_s[engine.place]
        profiler.measure_pieces(compiler)
        cost = profiler.cost(compiler)
        engine.compiled.clear()
        profiler.measure_pieces(compiler)
        assert not engine.compiled
    pieces = cost.pieces_s[engine.place]
    assert {piece.task for piece in pieces} >= {t.name for t in graph.tasks if t.kind == "Conv"}
    for piece, seconds in pieces.items():
        task = graph.task[piece.task]
        assert cost.piece_s(graph, task, piece.region, engine.place) == seconds
        computed_s = piece.region.size * graph.output_of(task).item_bytes * BYTE_S
        assert seconds >= computed_s * (1 - 1e-6)


class OnlyRelu(Clocked):
    """Another engine on the same processor, which runs few tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.info = EngineInfo("relu")
        self.device = replace(self.device, engine=self.info)

    def why_not(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        return None if task.kind == "Relu" else "it runs Relu only"


def test_devices_that_share_a_processor_take_turns(tmp_path: Path, cache: Cache) -> None:
    """Tasks that one of them refuses are computed by the other one beside the measured parts."""
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in (("Relu", "x", "h"), ("Exp", "h", "y"))]
    ends = [tensor_info(name, [1, 4, 8, 8]) for name in "xy"]
    model = load(from_nodes(nodes, ends[:1], ends[1:]))
    engines = Clocked(), OnlyRelu()
    with ProfileStore(tmp_path) as store:
        devices = [OpenDevice.of(engine) for engine in engines]
        profiler = Profiler(devices, store, effort=Effort(0, 2, 2))
        compiler = Compiler(model, cache)
        profiler.measure_pieces(compiler)
        pieces = profiler.cost(compiler).pieces_s
    tasks = [{piece.task for piece in pieces[engine.place]} for engine in engines]
    assert tasks[1] < tasks[0] and len(tasks[1]) == 1


def test_what_was_measured_beside_other_programs_counts_until_these_have_ended(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, engine = load(branches()), Clocked()
    names = {task.name for task in model.graph.tasks}

    def disturbed(meanwhile: float, *, now: float, fresh: bool = False) -> Set[str]:
        monkeypatch.setattr(profiler, "others_share", lambda runs: meanwhile)
        with ProfileStore(tmp_path) as store:
            devices, effort = [OpenDevice.of(engine)], Effort(0, 2, 2)
            measuring = Profiler(devices, store, fresh=fresh, effort=effort, share_now=lambda: now)
            found = measuring.cost(Compiler(model, cache))
        return found.disturbed[engine.place]

    assert disturbed(0.5, now=0.5) == names
    engine.compiled.clear()
    assert disturbed(0.0, now=0.5) == names  # nothing is measured
    assert not engine.compiled
    assert disturbed(0.0, now=0.0) == set()
    assert disturbed(0.0, now=0.5) == set()  # the new measurements are stored
    assert disturbed(0.5, now=0.5, fresh=True) == names


def test_the_load_is_observed_only_beside_disturbed_measurements(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, engine = load(branches()), Clocked()
    looks: list[int] = []

    def share_now() -> float:
        looks.append(1)
        return 1.0

    def observations(meanwhile: float, *, fresh: bool) -> int:
        looks.clear()
        monkeypatch.setattr(profiler, "others_share", lambda runs: meanwhile)
        with ProfileStore(tmp_path) as store:
            Profiler(
                [OpenDevice.of(engine)],
                store,
                fresh=fresh,
                effort=Effort(0, 2, 2),
                share_now=share_now,
            ).cost(Compiler(model, cache))
        return len(looks)

    assert observations(0.0, fresh=True) == 0
    assert observations(0.0, fresh=False) == 0
    observations(0.5, fresh=True)
    assert observations(0.0, fresh=False) == 1
