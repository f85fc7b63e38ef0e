"""The trace of a run in which engines tell what they do inside of segments."""

from collections.abc import Mapping
from pathlib import Path

from coexec.cli.common import write_file
from coexec.frontend.module import Array
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.workbench import Prepared

__all__ = ["write_trace"]

_WARM_UP = 2


def write_trace(path: Path, prepared: Prepared, feeds: Mapping[str, Array]) -> None:
    """Run a plan once more, with engines that are a little slower for what they tell, and write
    what ran when for ui.perfetto.dev."""
    work = prepared.work
    devices = [device.timed() for device in work.devices]
    with Executor(prepared.compiled, devices, waiting=work.settings.waiting) as executor:
        for _ in range(_WARM_UP):
            executor.run(feeds)
        recorder = RealRecorder(prepared.compiled, work.names)
        executor.run(feeds, recorder)
    graph = work.graph
    maker = {name: task.name for task in graph.tasks for operator in task.operators
             for name in operator.outputs}  # fmt: skip
    trace = recorder.trace().with_tasks(maker)
    write_file(path, trace.to_chrome(f"coexec: {graph.name}"))
