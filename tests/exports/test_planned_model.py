"""Models with a plan in them: the plan is read back, and the model stays what it was."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

import coexec
from coexec.cache import Cache
from coexec.cli import main
from coexec.cli.output import write_plan
from coexec.engines.detect import usable_cores
from coexec.errors import PlanError, UsageError
from coexec.exports.planned_model import PlannedModel, planned_model
from coexec.graph.graph import Piece
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.model.load import load
from coexec.plan.plan import Plan, Provenance
from coexec.plan.plan_file import PLAN_KEY
from coexec.research import platforms
from coexec.selection import optimize
from coexec.selection.decision import Candidate, Decision
from coexec.selection.plan_files import plan_of, text_of
from coexec.selection.planning_context import make_plan
from coexec.selection.prepared import Prepared, Simulated
from tests.helpers.small_models import branches, from_nodes, tensor_info

CORE = f"cpu:{usable_cores()[0]}"
X = np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)


def prepared_for(source: Any, planner: str = "heft") -> Prepared:
    """A plan by a planner for a simulated phone."""
    phone = platforms.load("kirin_990", None)
    graph = load(source).graph
    plan = make_plan(planner, {}, graph, phone.cost, phone.system)
    return Prepared(Simulated(graph, (phone.cost, phone.system), {}), plan)


def written(planned: PlannedModel, file: Path) -> Path:
    file.write_bytes(planned.content)
    if planned.weights:
        file.with_name(planned.weights_name).write_bytes(b"".join(planned.weight_chunks()))
    return file


def answer(model: Path) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {"x": X})
    return found


def answers_equally(one: Path, other: Path) -> bool:
    """Whether ONNX Runtime computes the same outputs of both models, bit for bit."""
    pairs = zip(answer(one), answer(other), strict=True)
    return all(np.array_equal(before, after) for before, after in pairs)


def properties(node: Any) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model with its weights in another file."""
    folder = tmp_path / "models"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save_model(
        branches(), str(path), save_as_external_data=True, location="w.bin", size_threshold=64
    )
    return path


@pytest.mark.parametrize("planner", ["single", "heft", "mulayer"])
def test_the_plan_is_read_back_and_the_answers_stay(planner: str, tmp_path: Path) -> None:
    model, file = tmp_path / "m.onnx", tmp_path / "p.onnx"
    onnx.save(branches(), str(model))
    prepared = prepared_for(model, planner)
    written(planned_model(model, prepared, file), file)
    onnx.checker.check_model(str(file), full_check=True)
    found = plan_of(file)
    assert found is not None and found.plan == prepared.plan
    assert answers_equally(file, model)
    assert load(file).graph.fingerprint == prepared.graph.fingerprint


def test_each_node_has_its_task_and_place(tmp_path: Path) -> None:
    model = branches()
    prepared = prepared_for(model)
    content = planned_model(model, prepared, tmp_path / "p.onnx").content
    proto = onnx.load_from_string(content)
    places = {piece.task: str(place) for piece, place in prepared.plan.place_of.items()}
    named = [properties(node) for node in proto.graph.node]
    assert {row["coexec.task"]: row["coexec.place"] for row in named} == places
    tasks = {op: task.name for task in prepared.graph.tasks for op in task.operators[0].outputs}
    by_output = {node.output[0]: properties(node) for node in proto.graph.node}
    assert all(by_output[output]["coexec.task"] == task for output, task in tasks.items())
    assert all(float(row["coexec.predicted_ms"]) > 0 for row in named)


def test_the_devices_are_in_the_fields_of_the_standard(tmp_path: Path) -> None:
    model = branches()
    prepared = prepared_for(model)
    file = written(planned_model(model, prepared, tmp_path / "p.onnx"), tmp_path / "p.onnx")
    read = ir.load(file)
    (configuration,) = read.device_configurations
    assert configuration.device_names == prepared.plan.used
    device_of = {piece.task: device for piece, device in prepared.plan.device_of.items()}
    segment_of = {p.task: s.index for s in prepared.schedule.segments for p in s.pieces}
    for node in read.graph:
        (own,) = node.device_configurations
        task = node.metadata_props["coexec.task"]
        assert own.pipeline_stage == segment_of[task]
        (spec,) = own.sharding_specs
        assert spec.value is node.outputs[0] and not spec.sharded_dims
        assert [configuration.device_names[n] for n in spec.device] == [device_of[task]]


def divided(at: int) -> tuple[onnx.ModelProto, Prepared]:
    """A model of one task, whose 20 rows two devices compute: one up to row ``at``."""
    node = helper.make_node("Relu", ["x"], ["y"], "relu")
    shape = [1, 3, 20, 20]
    model = from_nodes([node], [tensor_info("x", shape)], [tensor_info("y", shape)])
    prepared = prepared_for(model)
    graph, system = prepared.graph, prepared.system
    rows = [Region((0, 0, 0, 0), (1, 3, at, 20)), Region((0, 0, at, 0), (1, 3, 20, 20))]
    order = {
        device.places[0]: (Piece(graph.tasks[0].name, region),)
        for device, region in zip(system.devices[:2], rows, strict=True)
    }
    plan = Plan.of_places(graph.fingerprint, order, Provenance("mulayer"))
    return model, replace(prepared, plan=plan)


def test_equal_shares_are_a_sharded_axis(tmp_path: Path) -> None:
    model, prepared = divided(at=10)
    proto = onnx.load_from_string(planned_model(model, prepared, tmp_path / "p.onnx").content)
    (configuration,) = proto.graph.node[0].device_configurations
    (spec,) = configuration.sharding_spec
    assert (spec.tensor_name, list(spec.device)) == ("y", [0, 1])
    (dim,) = spec.sharded_dim
    (shares,) = dim.simple_sharding
    assert (dim.axis, shares.dim_value, shares.num_shards) == (2, 20, 2)
    assert not configuration.HasField("pipeline_stage")  # each share is in its own segment


def test_unequal_shares_are_in_the_metadata_alone(tmp_path: Path) -> None:
    model, prepared = divided(at=6)
    proto = onnx.load_from_string(planned_model(model, prepared, tmp_path / "p.onnx").content)
    (node,) = proto.graph.node
    assert not node.device_configurations[0].sharding_spec
    shares = properties(node)["coexec.place"].split("; ")
    assert [share.partition(" ")[2] for share in shares] == [
        "[0:1, 0:3, 0:6, 0:20]",
        "[0:1, 0:3, 6:20, 0:20]",
    ]


def test_a_second_plan_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first = planned_model(branches(), prepared_for(branches()), tmp_path / "p.onnx").content
    prepared = prepared_for(branches(), "single")
    again = onnx.load_from_string(planned_model(first, prepared, tmp_path / "q.onnx").content)
    once = planned_model(branches(), prepared, tmp_path / "q.onnx").content
    assert again == onnx.load_from_string(once)


def test_weights_beside_both_files_stay_where_they_are(external: Path) -> None:
    file = external.with_name("p.onnx")
    planned = planned_model(external, prepared_for(external), file)
    assert not planned.weights
    written(planned, file)
    assert answers_equally(file, external)


def test_weights_are_copied_to_another_folder(external: Path, tmp_path: Path) -> None:
    file = tmp_path / "plans" / "p.onnx"
    write_plan(file, str(external), prepared_for(external))
    assert sorted(path.name for path in file.parent.iterdir()) == ["p.onnx", "p.onnx.data"]
    onnx.checker.check_model(str(file), full_check=True)
    assert answers_equally(file, external)


def test_a_model_that_becomes_too_large_has_its_weights_in_a_file_beside_it(
    external: Path, tmp_path: Path
) -> None:
    model, file = tmp_path / "one.onnx", tmp_path / "p.onnx"
    onnx.save(branches(channels=48), str(model))
    size_bytes = model.stat().st_size
    planned = planned_model(model, prepared_for(model), file, most_bytes=size_bytes)
    assert planned.weights and len(planned.content) < size_bytes
    assert answers_equally(written(planned, file), model)
    # The weights that were in another file already are in the same new file.
    file = external.with_name("p.onnx")
    planned = planned_model(external, prepared_for(external), file, most_bytes=0)
    assert answers_equally(written(planned, file), external)


def test_the_files_of_the_model_are_not_replaced(external: Path) -> None:
    prepared = prepared_for(external)
    with pytest.raises(UsageError, match=r"m\.onnx' is the model itself"):
        write_plan(external, str(external), prepared)
    own = external.with_name("w.onnx.data")
    (external.parent / "w.bin").rename(own)
    model = onnx.load(str(external), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = own.name
    onnx.save(model, str(external))
    with pytest.raises(UsageError, match="weights of the model"):
        planned_model(external, prepared, external.with_name("w.onnx"), most_bytes=0)


def test_a_model_without_a_plan_is_refused(external: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=rf"no plan in the model '{external}'.*--output"):
        plan_of(external)
    damaged = tmp_path / "d.onnx"
    damaged.write_bytes(external.read_bytes()[:-9])
    with pytest.raises(PlanError, match=r"cannot read the plan.*d\.onnx"):
        plan_of(damaged)
    with pytest.raises(PlanError, match="No such file"):
        plan_of(tmp_path / "missing.onnx")


@pytest.mark.parametrize("suffix", ["json", "onnx"])
def test_a_plan_of_a_newer_version_is_refused_by_its_version(suffix: str, tmp_path: Path) -> None:
    text = '{"format": 99, "another": "form"}'
    file = tmp_path / f"p.{suffix}"
    if suffix == "onnx":
        model = branches()
        helper.set_model_props(model, {PLAN_KEY: text})
        onnx.save(model, str(file))
    else:
        file.write_text(text)
    with pytest.raises(PlanError, match=r"p\.\w+'.*format 99.*newer.*reads 2.*update coexec"):
        plan_of(file)


def test_a_session_answers_by_the_plan_in_a_model(tmp_path: Path, cache: Cache) -> None:
    model, file = branches(), tmp_path / "p.onnx"
    graph = load(model).graph
    pieces = tuple(graph.whole_piece(task) for task in graph.tasks)
    place = Place(CORE, "onnxruntime")
    plan = Plan.of_places(graph.fingerprint, {place: pieces}, Provenance("single"))
    helper.set_model_props(model, {PLAN_KEY: text_of(plan, graph, {})})
    onnx.save(model, str(file))
    with coexec.InferenceSession(file, plan=file, cache=cache) as session:
        assert session.devices == (CORE,) and session.degraded is None
        assert np.allclose(session.run(None, {"x": X})[0], answer(file)[0], atol=1e-4)


def test_the_command_line_writes_and_reads_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    phone = ("--platform", "kirin_990", "--cache", str(tmp_path / "cache"))
    file = tmp_path / "new" / "p.onnx"
    words = ("zoo:squeezenet", *phone, "--planner", "heft")
    assert main(["plan", *words, "--output", str(file)]) == 0
    assert f"written    {file}" in capfd.readouterr().out.replace("\n", "")
    assert [path.name for path in file.parent.iterdir()] == ["p.onnx"]
    model = tmp_path / "m.onnx"
    onnx.save(branches(), str(model))
    for verb in ("plan", "optimize"):
        assert main([verb, str(model), "--output", str(model), "--cache", phone[3]]) == 2
        assert "is the model itself" in capfd.readouterr().err.replace("\n", " ")
    assert main(["simulate", "zoo:squeezenet", *phone, "--plan", str(file)]) == 0
    assert main(["explain", "zoo:squeezenet", *phone, "--plan", str(file)]) == 0


def test_an_optimized_plan_is_kept_in_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, file = tmp_path / "m.onnx", tmp_path / "p.onnx"
    onnx.save(branches(), str(model))
    graph = load(model).graph
    pieces = tuple(graph.whole_piece(task) for task in graph.tasks)
    plan = Plan.of_places(
        graph.fingerprint, {Place(CORE, "onnxruntime"): pieces}, Provenance("single")
    )
    decision = Decision((Candidate((CORE,), "single", status="taken"),))
    verdict = optimize.Verdict(decision, text_of(plan, graph, {}), unfinished="x")
    monkeypatch.setattr(optimize, "optimize", lambda *_, **__: verdict)
    words = ["--output", str(file), "--option", "seconds=1", "--cache", str(tmp_path / "cache")]
    assert main(["optimize", str(model), *words]) == 0
    found = plan_of(file)
    assert found is not None and found.plan == plan and answers_equally(file, model)
