"""A comparison of plans and other engines with one model, timed in turns in one process."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import onnx_ir as ir
from common import in_turns
from hope_tables import Row, head, limited, source_of, tried

from coexec.costs.base import CostModel
from coexec.engines.opened import OpenDevice
from coexec.model.inputs import random_inputs
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.research import zoo
from coexec.runtime.executor import Executor
from coexec.selection.planning_context import PlanningContext, make_plan
from coexec.timing.simulate import simulate

__all__ = ["Contest", "Run", "accuracy", "openvino_run"]

Run = Callable[[], Any]


class Contest:
    """Collect rivals, then time all of them. Rivals with equal plans share one executor.

    Use it in a ``with`` statement: executors keep threads and memory until its end.
    """

    def __init__(
        self,
        platform: str,
        model: str,
        work: PlanningContext,
        *,
        cost: CostModel | None = None,
        devices: Sequence[OpenDevice] | None = None,
        limit_s: float | None = None,
    ) -> None:
        """
        Args:
            platform, model: the first cells of all rows.
            work: the model on its devices.
            cost: costs for planners and simulator; by default the profile.
            devices: devices that run the plans; by default those of ``work``.
            limit_s: time limit for planners with such an option; by default their own limit.
        """
        self.platform, self.model, self.work = platform, model, work
        measured, self.system = work.measured
        self.cost = measured if cost is None else cost
        self._devices = work.devices if devices is None else devices
        self._limit_s = limit_s
        self.feeds = random_inputs(work.model.graph)
        self._stack = ExitStack()
        self._runs: dict[str, Run] = {}
        self._known: dict[Hashable, Run] = {}
        self._rows: list[Row] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def planned(
        self, label: str, planner: str | None = None, *, caching: bool = True, **options: Any
    ) -> None:
        """Add the plan of a planner on all devices. If there is none, its row has the reason.

        Without ``caching``, tensors are moved again for each segment that reads them.
        """
        row = head(self.platform, self.model, label)
        fill = partial(self._planned, label, planner or label, options, caching)
        self._rows.append(tried(row, fill))

    def _planned(self, label: str, planner: str, options: Mapping[str, Any], caching: bool) -> Row:
        start_s = time.perf_counter()
        options = {**options, **limited(planner, self._limit_s)}
        plan = make_plan(planner, options, self.work.model.graph, self.cost, self.system)
        took_s = time.perf_counter() - start_s
        self._runs[label] = self._executed(plan, caching)
        schedule = derive(plan, self.work.model.graph, tensor_caching=caching)
        return {
            "simulated_s": simulate(schedule, self.cost, self.system).makespan_s,
            "bound_s": plan.provenance.bound_s,
            "status": plan.provenance.status,
            "planning_s": took_s,
            "moved_bytes": sum(transfer.size_bytes for transfer in schedule.transfers),
            "divided": len(plan.device_of) > len(self.work.model.graph.tasks),
        }

    def _executed(self, plan: Plan, caching: bool) -> Run:
        key = (tuple(plan.order.items()), tuple(plan.place_of.values()), plan.fused, caching)
        if key not in self._known:
            executor = Executor(
                self.work.prepared(plan).compiled,
                self._devices,
                waiting=self.work.settings.waiting,
                tensor_caching=caching,
            )
            self._stack.enter_context(executor)
            self._known[key] = partial(executor.run, self.feeds)
        return self._known[key]

    def of_another(self, label: str, work: PlanningContext, plan: Plan, **cells: Any) -> None:
        """Add a plan of the same model for other devices or in another configuration."""
        cost, system = work.measured
        executor = self._stack.enter_context(work.start(work.prepared(plan)))
        simulated_s = simulate(work.schedule(plan), cost, system).makespan_s
        self.other(label, partial(executor.run, self.feeds), simulated_s=simulated_s, **cells)

    def other(self, label: str, run: Run, **cells: Any) -> None:
        """Add any other function that runs the model."""
        self._runs[label] = run
        self._rows.append(head(self.platform, self.model, label) | cells)

    def engines(self, threads: int) -> None:
        """Add ONNX Runtime and OpenVINO with ``threads`` threads."""
        session = self.work.user_model.onnx_runtime(threads=threads)
        self.other(f"ORT {threads}", lambda: session.run(None, self.feeds))
        label = f"OpenVINO {threads}"
        try:
            run = openvino_run(self.model, self.feeds, threads)
        except ImportError:
            row = head(self.platform, self.model, label)
            reason = f"{label}: it is not installed (pip install openvino)"
            self._rows.append(row | {"skipped": reason})
        else:
            self.other(label, run)

    def noted(self, measure: Callable[[Run], Row]) -> None:
        """Add the cells that ``measure`` returns for a rival to the rows of all rivals so far."""
        self._rows = [
            row | measure(self._runs[row["planner"]]) if row["planner"] in self._runs else row
            for row in self._rows
        ]

    def timed(self, rounds: int) -> list[Row]:
        """Time all rivals; their rows in the order in which the rivals were added."""
        outcome = in_turns(self._runs, rounds)
        return [
            row
            | {
                name: outcome.rounds_s(row["planner"], figure) or None
                for name, figure in (("rounds_s", "paced"), ("loop_rounds_s", "loop"))
            }
            for row in self._rows
        ]


def openvino_run(model: str, feeds: Mapping[str, Any], threads: int) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # the default computes in 16 bits where possible
    }
    with TemporaryDirectory() as folder:
        path: Any = Path(folder) / "model.onnx"
        model_source = source_of(model)
        if isinstance(model_source, bytes):
            path.write_bytes(model_source)
        elif model_source.startswith("zoo:"):
            ir.save(zoo.build(model_source.removeprefix("zoo:")), path)
        else:
            path = model_source
        compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    return lambda: request.infer(dict(feeds))


def accuracy(rows: Sequence[Row]) -> list[Row]:
    """Simulated makespan over measured time in a loop, by platform and model, for each planner."""
    table: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["simulated_s"] and row["loop_rounds_s"]:
            key = row["platform"], row["model"]
            cells = table.setdefault(key, {"platform": key[0], "model": key[1]})
            measured_s = statistics.median(row["loop_rounds_s"])
            cells[row["planner"]] = f"{row['simulated_s'] / measured_s:.2f}"
    return [*table.values()]
