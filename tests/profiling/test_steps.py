"""Which tasks are measured at a new size, and which are not even compiled."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.costs.base import Prediction, Unmeasured
from coexec.costs.scaled import scaled
from coexec.engines.detect import usable_cores
from coexec.engines.opened import OpenDevice
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import Place
from coexec.lowering.module import Module
from coexec.model.load import load
from coexec.plan.derive import stepwise
from coexec.profiling.profiler import Profiler
from coexec.profiling.store import ProfileStore
from coexec.profiling.sweep import SweepItem, part_of
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.selection.planning_context import PlanningContext, make_plan
from coexec.settings import Effort, Settings
from tests.helpers.clocked import Clocked
from tests.helpers.graphs import make_graph
from tests.helpers.small_models import from_nodes, tensor_info

CONVS = 24


def chain(size: int) -> onnx.ModelProto:
    """A row of convolutions, no two with the same weights' shapes, and one half of the work."""
    rng = np.random.default_rng(0)
    nodes, weights = [], {}
    channels = [4, *(range(8, 8 + CONVS)), 1024]
    for number, (inner, outer) in enumerate(pairwise(channels)):
        source = "x" if number == 0 else f"c{number - 1}"
        weights[f"w{number}"] = rng.standard_normal((outer, inner, 1, 1)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [source, f"w{number}"], [f"c{number}"], f"c{number}"))
    last = f"c{CONVS}"
    return from_nodes(
        nodes,
        [tensor_info("x", [1, 4, size, size])],
        [tensor_info(last, [1, channels[-1], size, size])],
        weights,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    with ProfileStore(tmp_path) as opened:
        yield opened


def profile(
    model: onnx.ModelProto, engine: Clocked, store: ProfileStore, cache: Cache, **words: Any
) -> Mapping[str, tuple[float, str]]:
    """By task, its seconds and where they come from."""
    profiler = Profiler([OpenDevice.of(engine)], store, effort=Effort(0, 2, 2), **words)
    engine.compiled.clear()
    cost = profiler.cost(Compiler(load(model), cache))
    at = engine.place
    return {n: (s, cost.bases[at][n]) for n, s in cost.tasks_s[at].items()}


def bases(found: Mapping[str, tuple[float, str]]) -> Counter[str]:
    return Counter(basis for _, basis in found.values())


def test_only_what_decides_is_measured_and_compiled(store: ProfileStore, cache: Cache) -> None:
    engine = Clocked()
    first = profile(chain(8), engine, store, cache)
    assert bases(first) == {"measured": CONVS + 1} and f"c{CONVS}" in engine.compiled
    second = profile(chain(10), engine, store, cache)
    assert bases(second) == {"predicted": CONVS, "measured": 1}
    assert second[f"c{CONVS}"][1] == "measured"
    assert [name for name in engine.compiled if name.startswith("c")] == [f"c{CONVS}"]
    launch_s = store.read(engine.device.key)["launch"].seconds
    for name, (seconds, _) in second.items():
        here, before = seconds - launch_s, first[name][0] - launch_s
        assert here == pytest.approx(before * 100 / 64, rel=0.02, abs=2 * launch_s)


def test_what_was_measured_once_is_known(store: ProfileStore, cache: Cache) -> None:
    engine = Clocked()
    first = profile(chain(8), engine, store, cache)
    profile(chain(10), engine, store, cache)
    again = profile(chain(8), engine, store, cache)
    assert bases(again) == {"known": CONVS + 1} and not engine.compiled
    assert {n: s for n, (s, _) in again.items()} == {n: s for n, (s, _) in first.items()}


def test_predictions_are_not_stored(store: ProfileStore, cache: Cache) -> None:
    engine = Clocked()
    profile(chain(8), engine, store, cache)
    before = store.read(engine.device.key)
    profile(chain(10), engine, store, cache)
    after = store.read(engine.device.key)
    assert len(after) == len(before) + 1
    assert {s: after[s] for s in before} == before


def test_fresh_measures_everything(store: ProfileStore, cache: Cache) -> None:
    engine = Clocked()
    profile(chain(8), engine, store, cache)
    assert bases(profile(chain(10), engine, store, cache, fresh=True)) == {"measured": CONVS + 1}


def test_another_predictor_is_asked_with_what_it_needs(store: ProfileStore, cache: Cache) -> None:
    """One that knows everything for certain: nothing is measured."""
    engine, asked = Clocked(), []

    def certain(task: Unmeasured) -> Prediction | None:
        asked.append(task)
        return Prediction(1.0, 0.0) if task.samples else None

    profile(chain(8), engine, store, cache)
    found = profile(chain(10), engine, store, cache, predictor=certain)
    assert set(found.values()) == {(1.0, "predicted")}
    assert not any(name.startswith("c") for name in engine.compiled)
    assert {task.key for task in asked} == {engine.device.key}
    assert {task.operators for task in asked} == {"Conv"}


def test_a_part_reads_made_up_values_but_no_made_up_indices() -> None:
    def part(dtype: str) -> SweepItem | None:
        engine = Clocked()
        ends = Tensor("a", (4,), dtype), Tensor("b", (4,), "float32")
        whole = two_tasks(ends, engine.place)
        return part_of(whole, [1])

    for dtype in ("float32", "float16", "int8"):
        found = part(dtype)
        assert found is not None and [t.name for t in found.compiled.inputs] == ["a"]
        assert [s.index for s in found.compiled.segments] == [0]
        assert found.compiled.segments[0].after == ()
        assert [t.name for t in found.compiled.outputs] == ["b"]
    for dtype in ("int64", "int32", "bool"):
        assert part(dtype) is None


def two_tasks(tensors: tuple[Tensor, Tensor], place: Place) -> SweepItem:
    graph = make_graph({"a": [], "b": ["a"]})
    schedule = stepwise(graph, dict.fromkeys(("a", "b"), place))
    first, second = tensors
    modules = (
        Module(b"", {}, (graph.tensors["x"],), (first,)),
        Module(b"", {}, (first,), (second,)),
    )
    plan = CompiledPlan((graph.tensors["x"],), (second,), {}, {}, schedule.segments, (), modules)
    return SweepItem(graph.tasks, plan)


def test_a_part_may_return_what_has_no_memory_before_it_is_computed(tmp_path: Path) -> None:
    """The Mul is known when the ReduceSum comes, whose result has the shape that its axes say."""
    start = helper.make_node("Mul", ["a", "a"], ["b"], name="start")
    read = tensor_info("a", [4, 4])
    known = helper.make_node("Abs", ["b"], ["c"], name="end")
    first = from_nodes([start, known], [read], [tensor_info("c", [4, 4])])
    opaque = helper.make_node("ReduceSum", ["b", "axes"], ["c"], name="end")
    axes = tensor_info("axes", [1], onnx.TensorProto.INT64)
    second = from_nodes([start, opaque], [read, axes], [tensor_info("c", ["m", "n"])])
    settings = Settings([f"cpu:{usable_cores()[0]}"], cache=tmp_path, effort=Effort(1, 3, 3))
    assert PlanningContext(first, settings).measured
    work = PlanningContext(second, settings)
    cost, _ = work.measured
    (bases,) = cost.bases.values()
    assert bases == {"start": "known", "end": "measured"}
    assert work.graph.tensors["c"].opaque


def test_a_third_size_on_a_core_measures_less(tmp_path: Path) -> None:
    """With ONNX Runtime; planners get a finite time of every task. How certain predictions are
    depends on the machine: here they are taken for certain."""

    def certain(task: Unmeasured) -> Prediction | None:
        found = scaled(task)
        return None if found is None else Prediction(found.seconds, 0.0)

    measured = []
    for size in (32, 48, 64):
        work = PlanningContext(chain(size), Settings([f"cpu:{usable_cores()[0]}"], cache=tmp_path))
        with ProfileStore(tmp_path) as store:
            profiler = Profiler(work.devices, store, effort=Effort(2, 9, 9), predictor=certain)
            cost, system = profiler.cost(work.compiler), profiler.system()
        (place,) = system.places
        measured.append(Counter(cost.bases[place].values())["measured"])
        assert all(0 < s < 1 for s in cost.tasks_s[place].values())
        plan = make_plan("heft", {}, work.graph, cost, system)
        assert 0 < (plan.provenance.predicted_s or 0) < 1.01 * cost.total_s(place)
        work.release()
    assert measured == [CONVS + 1, 0, 0]
