"""Peak resident memory of a process that only loads a model and runs it twice.

The process is new, because this process also has the memory of profiling and of all rivals.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coexec.model.main_memory import peak_bytes
from coexec.model.values import run_session
from coexec.processes import Child, EndedError, Parent

if TYPE_CHECKING:  # imports would add to the memory of the process that runs ONNX Runtime
    from coexec.arrays import Array
    from coexec.plan.plan import Plan
    from coexec.selection.planning_context import PlanningContext


_RUNS = 2


def of_plan(work: "PlanningContext", plan: "Plan", feeds: "Mapping[str, Array]") -> int | None:
    """Peak bytes of a plan that starts from the cache; None if the process crashed."""
    child_settings = replace(
        work.settings,
        devices=list(work.device_names),
        cache=str(work.cache.root),
        fresh=False,
        progress=None,
    )
    return _in_a_process(
        _run_plan, work.user_model.source, child_settings, plan.to_json(), dict(feeds)
    )


def of_onnx_runtime(
    work: "PlanningContext", threads: int, feeds: "Mapping[str, Array]"
) -> int | None:
    """Peak bytes of ONNX Runtime alone, with the original model in a file; None if the process
    crashed."""
    from coexec.research_loader import zoo_name

    source = work.user_model.source
    if zoo_name(source) is None and not (work.settings.shapes or work.settings.values):
        return _in_a_process(_run_onnx_runtime, str(source), threads, dict(feeds))
    import onnx_ir as ir

    with tempfile.TemporaryDirectory(prefix="coexec-") as folder:
        path = Path(folder) / "model.onnx"
        # With the shapes and values that the user fixes.
        ir.save(work.user_model.fixed(), path, external_data="weights.bin")
        return _in_a_process(_run_onnx_runtime, str(path), threads, dict(feeds))


def _in_a_process(measure: Callable[..., int | None], *arguments: Any) -> int | None:
    with Child("coexec.report.peak:serve", "measures memory") as child:
        try:
            peak: int | None = child.ask((measure.__name__, arguments))
        except EndedError:
            return None
        return peak


def _run_plan(source: Any, settings: Any, plan: str, feeds: Mapping[str, Any]) -> int | None:
    from coexec.plan.plan import Plan
    from coexec.selection.planning_context import PlanningContext

    work = PlanningContext(source, settings)
    with work.start(work.prepared(Plan.from_json(plan))) as executor:
        for _ in range(_RUNS):
            executor.run(feeds)
    return peak_bytes()


def _run_onnx_runtime(path: str, threads: int, feeds: Mapping[str, Any]) -> int | None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for _ in range(_RUNS):
        run_session(session, names, feeds)
    return peak_bytes()


def serve(parent: Parent) -> None:
    """Measure as the parent asks."""
    measure, arguments = parent.receive()
    parent.send(globals()[measure](*arguments))
