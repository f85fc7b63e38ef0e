"""`--trace`: what is inside of segments, and what a viewer calls it."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli import main
from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.model.load import random_inputs
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings
from coexec.timing.trace import Detail, Trace
from tests.helpers.small_models import branches, from_nodes, tensor_info

CORES = usable_cores()
TWO = [f"cpu:{core}" for core in CORES[:2]]


def traced(folder: Path, proto: onnx.ModelProto, verb: str = "run", *words: str) -> Any:
    onnx.save(proto, str(folder / "model.onnx"))
    path = folder / "trace.json"
    assert (
        main(
            [
                verb,
                str(folder / "model.onnx"),
                *words,
                "--trace",
                str(path),
                "--cache",
                str(folder / "cache"),
            ]
        )
        == 0
    )
    return json.loads(path.read_text())["traceEvents"]


def names(events: Any) -> Mapping[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


BY_BRANCHES = [f"--pin=b{branch}.*={TWO[branch % len(TWO)]}" for branch in range(3)]


@pytest.mark.parametrize("how", [["--planner", "single"], ["--planner", "heft", *BY_BRANCHES]])
@pytest.mark.parametrize("start", ["first", "from the cache"])
def test_every_task_has_a_slice(
    how: list[str], start: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*how, "--devices", ",".join(TWO)]
    if start == "from the cache":
        traced(tmp_path, branches(), "run", *words)
    events = traced(tmp_path, branches(), "run", *words)
    segments = [e for e in events if e.get("cat") == "compute"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    tasks = {task for segment in segments for task in segment["args"]["tasks"]}
    assert {e["name"] for e in kernels} == tasks and len(tasks) > len(segments)
    rows = names(events)
    for segment in segments:
        own = [e for e in kernels if e["name"] in segment["args"]["tasks"]]
        assert sum(e["dur"] for e in own) <= segment["dur"]
        # They have a row of their own, which says that the clock is another one.
        assert {rows[e["tid"]] for e in own} == {
            f"{rows[segment['tid']]} kernels, by the engine's clock"
        }


@pytest.mark.usefixtures("quick_choice", "no_memory")
def test_rows_and_process_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = {}
    for verb in ("run", "bench", "simulate"):
        words = ["--repeats", "1"] if verb == "bench" else []
        events = traced(tmp_path, branches(), verb, "--devices", TWO[0], *words)
        (process,) = (e for e in events if e["name"] == "process_name")
        found[verb] = process["args"]["name"]
        assert process["ph"] == "M"
        used = {e["tid"] for e in events if e["ph"] == "X"}
        order = {e["tid"] for e in events if e["name"] == "thread_sort_index"}
        assert used <= set(names(events)) == order
    assert found.pop("simulate") == "coexec: model, simulated"
    for title in found.values():
        assert re.fullmatch(r"coexec: model, [\d.]+ .?s, without profilers [\d.]+ .?s", title)


def test_nodes_without_names_and_with_odd_ones(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"], name='"/\\\n\x01 _kernel_time'),
        helper.make_node("Softmax", ["b"], ["y"]),
    ]
    proto = from_nodes(
        nodes,
        [tensor_info("x", [4, 4])],
        [tensor_info("y", [4, 4])],
        {"w": np.ones((4, 4), np.float32)},
    )
    events = traced(tmp_path, proto, "run", "--devices", TWO[0])
    tasks = {t for e in events if e.get("cat") == "compute" for t in e["args"]["tasks"]}
    assert {e["name"] for e in events if e.get("cat") == "kernel"} == tasks


def test_ordinary_engines_are_not_profiled_and_the_other_tells_one_run(tmp_path: Path) -> None:
    work = PlanningContext(branches(), Settings(TWO[:1], cache=tmp_path))
    (device,) = work.devices
    prepared = work.prepared(replace(work.plan("single"), as_given=False))
    feeds = random_inputs(work.graph)
    assert type(device.engine).stop_timing is OpenEngine.stop_timing
    timed = device.timed()
    assert type(timed.engine).stop_timing is not OpenEngine.stop_timing
    assert timed.engine.place == device.engine.place
    with Executor(prepared.compiled, [timed]) as executor:
        expected = executor.run(feeds)
        counts = []
        for _ in range(2):
            recorder = RealRecorder(prepared.compiled, work.names)
            found = executor.run(feeds, recorder)
            counts.append(len(recorder.trace().details))
            assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert counts[0] == sum(len(module.operators) for module in prepared.compiled.modules)
    assert counts[1] == 0


def test_operators_of_a_module_say_what_they_work_for(tmp_path: Path) -> None:
    work = PlanningContext(branches(), Settings(TWO, cache=tmp_path))
    schedule = work.schedule(replace(work.plan("heft"), as_given=False))
    compiled = work.compiler.compile(schedule, work.devices, tasks_apart=True)
    made = {name for task in work.graph.tasks for name in task.outputs}
    for module in compiled.modules:
        assert len(module.results) == len(module.operators) and set(module.results) <= made
    assert {name for module in compiled.modules for name in module.results} == made


def test_details_know_their_tasks() -> None:
    details = (
        Detail("k", "d", "kernel", 0, 0, 0, 1, "inner"),
        Detail("k", "d", "copy", 0, 0, 0, 1, "unknown"),
    )
    trace = Trace(("d",), (), (), details).with_tasks({"inner": "conv"})
    assert [detail.task for detail in trace.details] == ["conv", ""]
    slices = [e for e in json.loads(trace.to_chrome("p"))["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in slices] == ["conv", "k"]
    assert slices[0]["args"]["kernel"] == "k"
