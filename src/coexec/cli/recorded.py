"""Trace of a run in which engines record what they do inside of segments."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coexec.arrays import Array
from coexec.cli.output import write_file
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.selection.prepared import Prepared
from coexec.units import format_seconds

_WARM_UP = 2


def write_trace(
    path: Path, prepared: Prepared, feeds: Mapping[str, Array], ordinary_s: float
) -> None:
    """Run a plan once more with profilers, which make engines slower, and write the trace for
    ui.perfetto.dev. Nothing is fused across tasks in this run. The title has the time of this run,
    and of an ordinary one.
    """
    work = prepared.work
    schedule = work.schedule(replace(prepared.plan, as_given=False))
    devices = [device.timed() for device in work.devices]
    compiled = work.compiler.compile(schedule, devices, tasks_apart=True)
    with Executor(compiled, devices, waiting=work.settings.waiting) as executor:
        for _ in range(_WARM_UP):
            executor.run(feeds)
        recorder = RealRecorder(compiled, work.names)
        executor.run(feeds, recorder)
    graph = work.graph
    maker = {
        name: task.name
        for task in graph.tasks
        for operator in task.operators
        for name in operator.outputs
    }
    trace = recorder.trace().with_tasks(maker)
    took = f"{format_seconds(trace.makespan_s)}, without profilers {format_seconds(ordinary_s)}"
    write_file(path, trace.to_chrome(f"coexec: {graph.name}, {took}"))
