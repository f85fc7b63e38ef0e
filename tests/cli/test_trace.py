"""Traces: what is inside of segments, what a viewer calls it, and their drawing as text."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli.gantt import draw
from coexec.engines.base import OpenEngine
from coexec.model.inputs import random_inputs
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings
from coexec.timing.trace import Detail, Span, Trace
from tests.cli.conftest import CPU, TWO, CommandLine
from tests.helpers.small_models import branches, from_nodes, tensor_info

CORES = TWO.split(",")


def traced(cli: CommandLine, verb: str, *words: str) -> Any:
    path = cli.folder / "trace.json"
    cli(verb, "MODEL", *words, "--trace", str(path))
    return json.loads(path.read_text())["traceEvents"]


def names(events: Any) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


BY_BRANCHES = [f"--pin=b{branch}.*={CORES[branch % len(CORES)]}" for branch in range(3)]


@pytest.mark.parametrize("how", [["--planner", "single"], ["--planner", "heft", *BY_BRANCHES]])
def test_every_task_has_a_slice(how: list[str], cli: CommandLine) -> None:
    for _ in ("the first start", "a start from the cache"):
        events = traced(cli, "run", *how, "--devices", TWO)
        segments = [e for e in events if e.get("cat") == "compute"]
        kernels = [e for e in events if e.get("cat") == "kernel"]
        tasks = {task for segment in segments for task in segment["args"]["tasks"]}
        assert {e["name"] for e in kernels} == tasks and len(tasks) > len(segments)
        rows = names(events)
        for segment in segments:
            own = [e for e in kernels if e["name"] in segment["args"]["tasks"]]
            assert sum(e["dur"] for e in own) <= segment["dur"]
            # They have a row of their own, which says that the clock is another one.
            row = f"{rows[segment['tid']]} kernels, by the engine's clock"
            assert {rows[e["tid"]] for e in own} == {row}


@pytest.mark.usefixtures("quick_choice", "no_memory")
@pytest.mark.parametrize("verb", ["run", "bench", "simulate"])
def test_rows_and_process_are_named(verb: str, cli: CommandLine) -> None:
    events = traced(cli, verb, "--devices", CPU, *(["--repeats", "1"] if verb == "bench" else []))
    (process,) = (e for e in events if e["name"] == "process_name")
    assert process["ph"] == "M"
    used = {e["tid"] for e in events if e["ph"] == "X"}
    order = {e["tid"] for e in events if e["name"] == "thread_sort_index"}
    assert used <= set(names(events)) == order
    ran = r"[\d.]+ .?s, without profilers [\d.]+ .?s"
    title = f"coexec: model, {'simulated' if verb == 'simulate' else ran}"
    assert re.fullmatch(title, process["args"]["name"])


def test_nodes_without_names_and_with_odd_ones(cli: CommandLine) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"], name='"/\\\n\x01 _kernel_time'),
        helper.make_node("Softmax", ["b"], ["y"]),
    ]
    ends, weights = [tensor_info(n, [4, 4]) for n in "xy"], {"w": np.ones((4, 4), np.float32)}
    onnx.save(from_nodes(nodes, ends[:1], ends[1:], weights), str(cli.model))
    events = traced(cli, "run", "--devices", CPU)
    tasks = {t for e in events if e.get("cat") == "compute" for t in e["args"]["tasks"]}
    assert {e["name"] for e in events if e.get("cat") == "kernel"} == tasks


def test_ordinary_engines_are_not_profiled_and_the_other_tells_one_run(cli: CommandLine) -> None:
    work = PlanningContext(branches(), Settings([CPU], cache=cli.folder))
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
    assert counts == [sum(len(module.operators) for module in prepared.compiled.modules), 0]


def test_operators_of_a_module_say_what_they_work_for(cli: CommandLine) -> None:
    work = PlanningContext(branches(), Settings(CORES, cache=cli.folder))
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


def test_computing_copying_and_waiting_look_different() -> None:
    spans = (
        Span("a", "cpu:0", 0.0, 2.0),
        Span("for a", "gpu:0", 0.0, 2.0, "wait"),
        Span("a: cpu:0 -> gpu:0", "gpu:0", 2.0, 4.0, "transfer"),
        Span("reorder a", "gpu:0", 3.0, 4.0, "layout"),
        Span("b", "gpu:0", 4.0, 8.0),
        Span("hand-over", "cpu:0", 2.0, 6.5, "wait"),
        Span("c", "cpu:0", 6.5, 7.0),
    )
    first, second, legend = draw(Trace(("cpu:0", "gpu:0"), spans), width=8).splitlines()
    assert first == "cpu:0 │██····▄ │  31%"
    assert second == "gpu:0 │··▓▓████│  75%"
    assert "█ computing  ▓ copying  · waiting" in legend and legend.endswith("8.00 s")


def test_a_column_tells_how_much_of_its_time_was_used() -> None:
    spans = (
        Span("a", "cpu:0", 0.0, 0.25),
        Span("copy", "cpu:0", 0.25, 0.5, "transfer"),
        Span("copy", "cpu:0", 1.0, 1.4, "transfer"),
        Span("b", "cpu:0", 2.0, 4.0),
    )
    assert draw(Trace(("cpu:0",), spans), width=4).startswith("cpu:0 │▄░██│")
    assert draw(Trace(("cpu:0",), ())) == "nothing ran"
