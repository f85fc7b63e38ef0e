"""Measure a model's tasks on each device, and how devices hand tensors to each other.

Tasks are timed in place: all of them one after the other, each a segment of its own, so that caches
are as cold as in a real inference. Timed one by one in a loop they look up to 10 % faster.
"""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from coexec.compiling.compiled import CompiledPlan
from coexec.compiling.compiler import Compiler
from coexec.costs.estimated import estimated_s
from coexec.costs.table import CostTable
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.errors import ExecutionError, InfeasibleError, ModelWarning, first_line
from coexec.frontend.inputs import candidates, random_inputs
from coexec.frontend.module import Array
from coexec.ir.graph import Graph, Task
from coexec.plans.derive import stepwise
from coexec.plans.schedule import Schedule
from coexec.profiling.links import crossing, launch_overhead, wake_up
from coexec.profiling.store import Measurement, ProfileStore
from coexec.profiling.traffic import Quiet, undisturbed
from coexec.runtime.executor import Executor, Waiting
from coexec.runtime.recorder import RealRecorder
from coexec.system.hardware import Link, Place, System
from coexec.timing.trace import Detail, Trace

__all__ = ["Effort", "Profiler", "Progress", "measure_in_place"]

Progress = Callable[[str, int, int], None]
"""Told what is measured, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Effort:
    """When to stop measuring."""

    warm_up: int = 2
    least: int = 7
    most: int = 40
    stable: float = 0.01
    """Relative change of the median of the whole from the first half of the sweeps to all."""
    budget_s: float = 20.0
    """For one device."""


class Profiler:
    """Measures what the store does not hold yet."""

    def __init__(
        self,
        devices: Sequence[OpenDevice],
        store: ProfileStore,
        *,
        fresh: bool = False,
        effort: Effort | None = None,
        progress: Progress | None = None,
        waiting: Waiting = "passive",
        quiet: Quiet | None = None,
    ) -> None:
        """
        Args:
            fresh: measure everything anew and replace what is stored.
            waiting: how the threads of two devices will wait for each other.
            quiet: measure only while another process is not asked for anything.
        """
        self._quiet = quiet
        self._waiting: Waiting = waiting
        self._devices = devices
        self._store = store
        self._fresh = fresh
        self._effort = effort or Effort()
        self._progress = progress or (lambda what, done, total: None)

    def cost(self, compiler: Compiler) -> CostTable:
        """Seconds of each task of the model on each device, with its first engine.

        Raises:
            InfeasibleError: a task that no device can run.
        """
        graph = compiler.model.graph
        home = {task.name: self._first_that_runs(task, graph) for task in graph.tasks}
        tasks_s: dict[Place, Mapping[str, float]] = {}
        by_key: dict[str, Mapping[str, float]] = {}
        for engine in self._engines:
            key = _key(engine)
            if key not in by_key:
                by_key[key] = self._tasks_s(compiler, engine, home)
            tasks_s[engine.place] = by_key[key]
        return CostTable(tasks_s, {e.place: self._launch_s(e) for e in self._engines})

    @property
    def _engines(self) -> list[OpenEngine]:
        """What plans may use: of each device its first engine."""
        return [device.first for device in self._devices]

    def _first_that_runs(self, task: Task, graph: Graph) -> Place:
        reasons = []
        for engine in self._engines:
            reason = engine.refusal(task, graph.tensors)
            if reason is None:
                return engine.place
            reasons.append(f"{engine.place}: {reason}")
        raise InfeasibleError(f"no device runs task {task.name!r} ({task.kind}): "
                              f"{'; '.join(reasons)}; add a CPU device")  # fmt: skip

    def _tasks_s(
        self, compiler: Compiler, engine: OpenEngine, home: Mapping[str, Place]
    ) -> Mapping[str, float]:
        graph = compiler.model.graph
        can = {t.name: engine.refusal(t, graph.tensors) is None for t in graph.tasks}
        place_of = {n: engine.place if runs else home[n] for n, runs in can.items()}
        compiled = compiler.compile(stepwise(graph, place_of), self._devices)
        signatures = [
            f"{task.signature} | {' '.join(module.operators)}"
            for task, module in zip(graph.tasks, compiled.modules, strict=True)
        ]
        wanted = {s for s, t in zip(signatures, graph.tasks, strict=True) if can[t.name]}
        known = {} if self._fresh else self._store.read(_key(engine))
        if not wanted <= known.keys():
            measured = self._sweep(compiled, signatures, engine, graph)
            if measured is None:
                return self._estimated(graph, engine, can)
            known = {s: m for s, m in measured.items() if s in wanted and s not in known} | known
            self._store.write(_key(engine), {s: known[s] for s in wanted})
        return {
            t.name: known[s].seconds if can[t.name] else float("inf")
            for s, t in zip(signatures, graph.tasks, strict=True)
        }

    def _estimated(
        self, graph: Graph, engine: OpenEngine, can: Mapping[str, bool]
    ) -> Mapping[str, float]:
        """Seconds of each task, of what it computes and moves. They are not stored."""
        launch_s, cores = self._launch_s(engine), len(engine.device.cores)
        return {
            t.name: launch_s + estimated_s(graph, t, cores) if can[t.name] else float("inf")
            for t in graph.tasks
        }

    def _sweep(
        self, compiled: CompiledPlan, signatures: Sequence[str], engine: OpenEngine, graph: Graph
    ) -> dict[str, Measurement] | None:
        """The median of each signature; None if no made-up inputs suit the model."""
        reason = ""
        for feeds in candidates(graph):
            try:
                return self._swept(compiled, signatures, engine, graph, feeds)
            except ExecutionError as error:
                reason = reason or first_line(error)
        warnings.warn(
            f"{graph.name!r} does not run with made-up inputs ({reason}); its tasks cannot be "
            f"measured, and plans for {engine.place} rest on estimates",
            ModelWarning, stacklevel=2,
        )  # fmt: skip
        return None

    def _swept(
        self, compiled: CompiledPlan, signatures: Sequence[str], engine: OpenEngine, graph: Graph,
        feeds: Mapping[str, Array],
    ) -> dict[str, Measurement]:  # fmt: skip
        """Run all tasks in order until their sum is stable; the median of each signature."""
        effort = self._effort
        rows: list[list[float]] = []
        what = f"{engine.place}: {len(set(signatures))} distinct tasks"
        with Executor(compiled, self._devices) as executor:
            for _ in range(effort.warm_up):
                executor.run(feeds)
            started_s = time.perf_counter()
            while len(rows) < effort.most and not (
                len(rows) >= effort.least
                and (_stable(rows, effort) or time.perf_counter() - started_s > effort.budget_s)
            ):
                recorder = RealRecorder(compiled, [d.spec.name for d in self._devices])
                undisturbed(partial(executor.run, feeds, recorder), self._quiet)
                rows.append(_task_seconds(recorder.trace(), graph))
                self._progress(what, len(rows), effort.most)
        self._progress(what, effort.most, effort.most)
        samples: dict[str, list[float]] = {}
        for signature, column in zip(signatures, zip(*rows, strict=True), strict=True):
            samples.setdefault(signature, []).extend(column)
        return {signature: Measurement.of(seconds) for signature, seconds in samples.items()}

    def _launch_s(self, engine: OpenEngine) -> float:
        (seconds,) = self._cached(_key(engine), ["launch"], lambda: [launch_overhead(engine)])
        return seconds

    def system(self) -> System:
        """The devices, with a measured link for every ordered pair of them."""
        links = tuple(self._link(a, b) for a in self._engines for b in self._engines if a is not b)
        return System(tuple(d.spec for d in self._devices), links)

    def _link(self, source: OpenEngine, target: OpenEngine) -> Link:
        ends = source.device.name, target.device.name
        key = f"{_key(source)} -> {_key(target)}"
        how = "" if self._waiting == "passive" else ", active"
        if source.memory == target.memory:
            (latency_s,) = self._cached(
                key, [f"handover{how}"], lambda: [wake_up(source, target, self._waiting)]
            )
            return Link(*ends, latency_s, source_engine=source.info.name,
                        target_engine=target.info.name)  # fmt: skip
        latency_s, byte_s = self._cached(
            key,
            [f"crossing{how}", f"crossing, a byte{how}"],
            lambda: crossing(source, target, self._waiting),
        )
        return Link(*ends, latency_s, 1 / byte_s if byte_s else math.inf,
                    source_engine=source.info.name, target_engine=target.info.name)  # fmt: skip

    def _cached(
        self, key: str, signatures: Sequence[str], measure: Callable[[], Sequence[Measurement]]
    ) -> list[float]:
        """Seconds of each signature: all from the store, or else all measured together."""
        known = {} if self._fresh else self._store.read(key)
        if not set(signatures) <= known.keys():
            known = dict(zip(signatures, measure(), strict=True))
            self._store.write(key, known)
        return [known[signature].seconds for signature in signatures]


def _key(engine: OpenEngine) -> str:
    return engine.device.key(engine.info.name)


def measure_in_place(
    compiler: Compiler, schedule: Schedule, devices: Sequence[OpenDevice], runs: int = 7
) -> dict[str, float]:
    """Median seconds of each task of a schedule that has a segment for each, in order."""
    graph = schedule.graph
    compiled = compiler.compile(schedule, devices)
    feeds = random_inputs(graph)
    rows = []
    with Executor(compiled, devices) as executor:
        for number in range(runs + 2):
            recorder = RealRecorder(compiled, [d.spec.name for d in devices])
            executor.run(feeds, recorder)
            if number >= 2:
                rows.append(_task_seconds(recorder.trace(), graph))
    medians = (statistics.median(column) for column in zip(*rows, strict=True))
    return dict(zip((t.name for t in graph.tasks), medians, strict=True))


def _task_seconds(trace: Trace, graph: Graph) -> list[float]:
    """Seconds of each task in a run with one segment for each.

    A device with a clock of its own tells how long its kernels took, which is free of the noise of
    waiting for them. Kernels that end before the next one is enqueued cost as much as that takes.
    What a segment needs besides its kernels is the launch: the median over all tasks.
    """
    spans = {s.segment: s for s in trace.of("compute")}
    maker = {n: t.name for t in graph.tasks for op in t.operators for n in op.outputs}
    kernels: dict[str, list[Detail]] = {}
    for detail in trace.details:
        if detail.kind == "kernel" and detail.result in maker and detail.name != "reorder":
            kernels.setdefault(maker[detail.result], []).append(detail)
    steps = [b.queued_s - a.queued_s for d in kernels.values() for a, b in pairwise(d)]
    enqueue_s = statistics.median(steps) if steps else 0.0
    busy = {task: sum(max(k.duration_s, enqueue_s) for k in done) for task, done in kernels.items()}
    timed = {spans[i].device for i, t in enumerate(graph.tasks) if t.name in busy}
    extra = [
        spans[i].duration_s - busy.get(t.name, 0.0)
        for i, t in enumerate(graph.tasks)
        if spans[i].device in timed
    ]
    launch_s = max(0.0, statistics.median(extra)) if extra else 0.0
    return [
        busy.get(t.name, 0.0) + launch_s if spans[i].device in timed else spans[i].duration_s
        for i, t in enumerate(graph.tasks)
    ]


def _stable(rows: Sequence[Sequence[float]], effort: Effort) -> bool:
    sums = [sum(row) for row in rows]
    half = statistics.median(sums[: len(sums) // 2])
    return abs(statistics.median(sums) - half) <= effort.stable * half
