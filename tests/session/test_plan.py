"""`InferenceSession(MODEL, plan=...)`: a plan that was made before, and nothing is measured."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import coexec
from coexec.cache import Cache, Weights
from coexec.engines.detect import usable_cores
from coexec.errors import DegradedWarning, DeviceError, PlanError, UsageError
from coexec.hardware.hardware import Place
from coexec.model.load import load
from coexec.plan.plan import Plan, Provenance
from coexec.profiling import profiler
from coexec.selection import comparison
from coexec.selection.plan_files import text_of
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings
from tests.helpers.examples import scaled
from tests.helpers.small_models import branches, from_nodes, tensor_info

CORE = f"cpu:{usable_cores()[0]}"
X = np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "Profiler", lambda *_, **__: pytest.fail("it measures"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    onnx.save(branches(), str(path))
    return path


def rewritten(model: Path, device: str = CORE) -> Plan:
    """All tasks on one core, as coexec rewrites them: what is compared before it answers."""
    graph = load(model).graph
    pieces = tuple(graph.whole_piece(task) for task in graph.tasks)
    place = Place(device, "onnxruntime")
    return Plan.of_places(graph.fingerprint, {place: pieces}, Provenance("single"))


def written(model: Path, plan: Plan, path: Path) -> Path:
    path.write_text(text_of(plan, load(model).graph, {}))
    return path


def test_the_plan_of_a_file_answers(
    model: Path, tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(model, rewritten(model), tmp_path / "p.json")
    with coexec.InferenceSession(model, plan=str(file), cache=cache) as session:
        assert session.degraded is None and session.devices == (CORE,)
        expected = session.run(["y"], {"x": X})[0]
        assert np.allclose(expected, load_and_run(model), atol=1e-4)
        file.unlink()  # a copy needs it no more
        with pickle.loads(pickle.dumps(session)) as copy:
            assert copy.devices == (CORE,)
            assert np.array_equal(copy.run(["y"], {"x": X})[0], expected)
    with monkeypatch.context() as patch:
        fetched: list[Any] = []
        fetch = Weights.fetch
        patch.setattr(Weights, "fetch", lambda own, n: (fetched.append(n), fetch(own, n))[1])
        again = coexec.InferenceSession(model, plan=rewritten(model), cache=cache)
        assert again.devices == (CORE,) and not again.ort_is_open
        assert len(fetched) == 1  # each time compares all weights with their checksums


def load_and_run(model: Path) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": X})[0]


def test_no_plan_of_a_file_answers_before_it_was_compared(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "unlike", lambda *_, **__: "is another one")
    monkeypatch.setattr(comparison, "_REPEATED", 1.0)
    file = written(model, rewritten(model), tmp_path / "p.json")
    with (
        pytest.warns(DegradedWarning, match="ONNX Runtime's own session answers") as caught,
        coexec.InferenceSession(model, plan=file, cache=tmp_path / "cache") as session,
    ):
        assert session.degraded and session.devices == ()
    assert caught[0].filename == __file__


def test_what_the_plan_does_not_fit_is_one_message(
    model: Path, tmp_path: Path, cache: Cache
) -> None:
    file = written(model, rewritten(model), tmp_path / "p.json")
    larger = branches(size=24)
    with pytest.raises(PlanError, match=r"x \[1, 3, 20, 20\].*x \[1, 3, 24, 24\].*make a new"):
        coexec.InferenceSession(larger, plan=file, cache=cache)
    elsewhere = written(model, rewritten(model, "cpu:4095"), tmp_path / "q.json")
    missing = r"q.json' computes on cpu:4095/onnxruntime.*\d cores"
    with pytest.raises(DeviceError, match=missing):
        coexec.InferenceSession(model, plan=elsewhere, cache=cache, strict=True)
    with pytest.warns(DegradedWarning, match=missing) as caught:
        session = coexec.InferenceSession(model, plan=elsewhere, cache=cache)
    assert len(caught) == 1 and caught[0].filename == __file__
    with session:
        expected = onnxruntime.InferenceSession(model).run(None, {"x": X})
        for _ in range(2):
            assert np.array_equal(session.run(None, {"x": X})[0], expected[0])
        assert session.devices == () and re.search(missing, str(session.degraded))
    with pytest.raises(PlanError, match=r"uses device 'cpu:4095'.*has cpu:\d"):
        coexec.InferenceSession(model, plan=elsewhere, devices=CORE, cache=cache)


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ({"plan": "none.json"}, PlanError, r"'none.json': No such file.*coexec plan MODEL"),
        ({"plan": "/"}, PlanError, "cannot read the plan '/'.*directory"),
        ({"plan": 3}, UsageError, "plan=3 is a int; give the path"),
        ({"planner": "heft"}, UsageError, "planner='heft'.*leave one of the two out"),
        ({"pins": {"a": "cpu:0"}}, UsageError, "pins=.*leave one of the two out"),
        ({"mode": "throughput"}, UsageError, "mode='throughput'"),
    ],
)
def test_arguments_that_make_no_sense(
    model: Path, words: dict, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        coexec.InferenceSession(model, **{"plan": rewritten(model), **words})


def open_model() -> onnx.ModelProto:
    relu = onnx.helper.make_node("Relu", ["x"], ["y"], "relu")
    return from_nodes([relu], [tensor_info("x", ["N", 4])], [tensor_info("y", ["N", 4])])


def test_the_shapes_of_the_plan_are_those_of_the_session(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(open_model(), str(path))
    work = PlanningContext(str(path), Settings(devices=[CORE], shapes={"N": 2}))
    plan = work.plan("single")
    file = tmp_path / "p.json"
    file.write_text(text_of(plan, work.graph, work.shapes))
    with coexec.InferenceSession(path, plan=file, cache=cache) as session:
        assert session.get_inputs()[0].shape == [2, 4] and session.devices == (CORE,)
        other = session.run(None, {"x": -np.ones((3, 4), np.float32)})[0]  # by ONNX Runtime
        assert not other.any()
        assert "made for other shapes" in session.degraded
    with pytest.raises(PlanError, match=r"x \[2, 4\].*x \[3, 4\]"):
        coexec.InferenceSession(path, plan=file, shapes={"N": 3}, cache=cache)
    with pytest.raises(PlanError, match=r"fixes no sizes of 'x' \['N', 4\].*shapes="):
        coexec.InferenceSession(path, plan=plan, cache=cache)
    with coexec.InferenceSession(path, plan=plan, shapes={"N": 2}, cache=cache) as session:
        assert session.devices == (CORE,)


@given(data=st.data())
@settings(
    max_examples=scaled(3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it is the same for all
)
def test_a_plan_that_is_written_read_and_used_is_the_same(
    data: st.DataObject, model: Path, tmp_path_factory: pytest.TempPathFactory, cache: Cache
) -> None:
    """On however many cores this machine has."""
    graph = load(model).graph
    cores = [f"cpu:{core}" for core in usable_cores()[:2]]
    order: dict[Place, tuple] = {Place(core, "onnxruntime"): () for core in cores}
    for task in graph.tasks:
        place = Place(data.draw(st.sampled_from(cores)), "onnxruntime")
        order[place] += (graph.whole_piece(task),)
    plan = Plan.of_places(graph.fingerprint, order, Provenance("drawn"))
    file = written(model, plan, tmp_path_factory.mktemp("plan") / "p.json")
    with coexec.InferenceSession(model, plan=file, cache=cache) as session:
        running = session.coexec_router.running
        assert running is not None and running.prepared.plan == plan


def test_a_strict_session_refuses_a_plan_that_does_not_start(
    model: Path, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is in the cache, and the engine of its device has gone meanwhile."""
    file = written(model, rewritten(model), tmp_path / "p.json")
    coexec.InferenceSession(model, plan=file, cache=cache).close()

    def gone(*_: object) -> None:
        raise DeviceError("the engine is not available")

    monkeypatch.setattr(PlanningContext, "start", gone)
    with pytest.raises(PlanError, match=r"p.json' does not answer: the engine is not available"):
        coexec.InferenceSession(model, plan=file, cache=cache, strict=True)
    with pytest.warns(DegradedWarning, match="the engine is not available"):
        coexec.InferenceSession(model, plan=file, cache=cache).close()
