"""Measure a model's tasks on each device, and how devices hand tensors to each other.

Tasks are timed in place: all of them one after the other, each a segment of its own, so that caches
are as cold as in a real inference. Timed one by one in a loop they look up to 10 % faster.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx

from coexec.compile import Compiler
from coexec.compiled import CompiledPlan
from coexec.costs.table import CostTable
from coexec.derive import stepwise
from coexec.devices.base import Device
from coexec.errors import InfeasibleError
from coexec.execute import Executor, Waiting
from coexec.frontend.load import random_inputs
from coexec.frontend.module import Module
from coexec.hardware import Link, System
from coexec.ir.graph import Graph, Task, Tensor
from coexec.record import RealRecorder
from coexec.schedule import Schedule, Segment
from coexec.store import Measurement, ProfileStore
from coexec.trace import Detail, Trace

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
        devices: Sequence[Device],
        store: ProfileStore,
        *,
        fresh: bool = False,
        effort: Effort | None = None,
        progress: Progress | None = None,
        waiting: Waiting = "passive",
    ) -> None:
        """
        Args:
            fresh: measure everything anew and replace what is stored.
            waiting: how the threads of two devices will wait for each other.
        """
        self._waiting: Waiting = waiting
        self._devices = devices
        self._store = store
        self._fresh = fresh
        self._effort = effort or Effort()
        self._progress = progress or (lambda what, done, total: None)

    def cost(self, compiler: Compiler) -> CostTable:
        """Seconds of each task of the model on each device.

        Raises:
            InfeasibleError: a task that no device can run.
        """
        graph = compiler.model.graph
        home = {task.name: self._first_that_runs(task, graph) for task in graph.tasks}
        tasks_s: dict[str, Mapping[str, float]] = {}
        by_key: dict[str, Mapping[str, float]] = {}
        for device in self._devices:
            key = device.spec.key
            if key not in by_key:
                by_key[key] = self._tasks_s(compiler, device, home)
            tasks_s[device.spec.name] = by_key[key]
        return CostTable(tasks_s, {d.spec.name: self._launch_s(d) for d in self._devices})

    def _first_that_runs(self, task: Task, graph: Graph) -> str:
        reasons = []
        for device in self._devices:
            reason = device.why_not(task, graph.tensors)
            if reason is None:
                return device.spec.name
            reasons.append(f"{device.spec.name}: {reason}")
        raise InfeasibleError(f"no device runs task {task.name!r} ({task.kind}): "
                              f"{'; '.join(reasons)}; add a CPU device")  # fmt: skip

    def _tasks_s(
        self, compiler: Compiler, device: Device, home: Mapping[str, str]
    ) -> Mapping[str, float]:
        graph = compiler.model.graph
        can = {t.name: device.why_not(t, graph.tensors) is None for t in graph.tasks}
        device_of = {n: device.spec.name if runs else home[n] for n, runs in can.items()}
        compiled = compiler.compile(stepwise(graph, device_of), self._devices)
        signatures = [
            f"{task.signature} | {' '.join(module.operators)}"
            for task, module in zip(graph.tasks, compiled.modules, strict=True)
        ]
        wanted = {s for s, t in zip(signatures, graph.tasks, strict=True) if can[t.name]}
        known = {} if self._fresh else self._store.read(device.spec.key)
        if not wanted <= known.keys():
            measured = self._sweep(compiled, signatures, device, graph)
            known = {s: m for s, m in measured.items() if s in wanted and s not in known} | known
            self._store.write(device.spec.key, {s: known[s] for s in wanted})
        return {
            t.name: known[s].seconds if can[t.name] else float("inf")
            for s, t in zip(signatures, graph.tasks, strict=True)
        }

    def _sweep(
        self, compiled: CompiledPlan, signatures: Sequence[str], device: Device, graph: Graph
    ) -> dict[str, Measurement]:
        """Run all tasks in order until their sum is stable; the median of each signature."""
        feeds = random_inputs(graph)
        effort = self._effort
        rows: list[list[float]] = []
        what = f"{device.spec.name}: {len(set(signatures))} distinct tasks"
        with Executor(compiled, self._devices) as executor:
            for _ in range(effort.warm_up):
                executor.run(feeds)
            started_s = time.perf_counter()
            while len(rows) < effort.most and not (
                len(rows) >= effort.least
                and (_stable(rows, effort) or time.perf_counter() - started_s > effort.budget_s)
            ):
                recorder = RealRecorder(compiled, [d.spec.name for d in self._devices])
                executor.run(feeds, recorder)
                rows.append(_task_seconds(recorder.trace(), graph))
                self._progress(what, len(rows), effort.most)
        self._progress(what, effort.most, effort.most)
        samples: dict[str, list[float]] = {}
        for signature, column in zip(signatures, zip(*rows, strict=True), strict=True):
            samples.setdefault(signature, []).extend(column)
        return {signature: _measurement(seconds) for signature, seconds in samples.items()}

    def _launch_s(self, device: Device) -> float:
        """Seconds that a program takes which has next to nothing to compute."""
        return self._cached(
            device.spec.key, "launch", lambda: self._chain([device, device], _RELU)[0]
        )

    def system(self) -> System:
        """The devices, with a measured link for every ordered pair of them."""
        links = tuple(self._link(a, b) for a in self._devices for b in self._devices if a is not b)
        return System(tuple(d.spec for d in self._devices), links)

    def _link(self, source: Device, target: Device) -> Link:
        key = f"{source.spec.key} -> {target.spec.key}"
        handover = "handover" if self._waiting == "passive" else "handover, active"
        latency_s = self._cached(key, handover, lambda: self._chain([source, target], _PRODUCT)[1])
        bandwidth = float("inf")
        if source.spec.memory != target.spec.memory:
            bandwidth = 1 / self._cached(key, "copy, a byte", lambda: _copy_s(source, target))
        return Link(source.spec.name, target.spec.name, latency_s, bandwidth)

    def _cached(self, key: str, signature: str, measure: Callable[[], Measurement]) -> float:
        known = {} if self._fresh else self._store.read(key)
        if signature not in known:
            known[signature] = measure()
            self._store.write(key, {signature: known[signature]})
        return known[signature].seconds

    def _chain(self, pair: Sequence[Device], op_type: str) -> tuple[Measurement, Measurement]:
        """Small segments, turn by turn on two devices: their duration, and the gap in between."""
        names = [d.spec.name for d in pair]
        segments = tuple(
            Segment(i, names[i % 2], (), (), (), (i - 1,) if i else ()) for i in range(40)
        )
        modules = tuple(_small(i, op_type) for i in range(len(segments)))
        tensor = modules[0].inputs[0]
        compiled = CompiledPlan((tensor,), modules[-1].outputs, {}, {}, segments, (), modules)
        spans_s: list[float] = []
        gaps_s: list[float] = []
        devices = pair if names[0] != names[1] else pair[:1]
        with Executor(compiled, devices, waiting=self._waiting) as executor:
            for _ in range(6):
                recorder = RealRecorder(compiled, names)
                executor.run({tensor.name: np.zeros(tensor.shape, np.float32)}, recorder)
                spans = recorder.trace().spans
                spans_s += [s.duration_s for s in spans[1:]]
                gaps_s += [b.start_s - a.end_s for a, b in pairwise(spans)]
        return _measurement(spans_s), _measurement([max(g, 0.0) for g in gaps_s])


def measure_in_place(
    compiler: Compiler, schedule: Schedule, devices: Sequence[Device], runs: int = 7
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
    spans = {s.segment: s for s in trace.spans}
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


def _measurement(seconds: Sequence[float]) -> Measurement:
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    spread = (high - low) / (2 * middle) if middle else 0.0
    return Measurement(float(middle), float(spread), len(seconds))


def _copy_s(source: Device, target: Device) -> Measurement:
    """Seconds a byte, from two sizes, so that what a copy costs at least drops out."""
    times: list[list[float]] = [[], []]
    sizes = (2**16, 2**22)
    for which, size in enumerate(sizes):
        tensor = source.upload(np.zeros(size // 4, np.float32))
        for _ in range(10):
            start_s = time.perf_counter()
            target.upload(source.download(tensor))
            times[which].append(time.perf_counter() - start_s)
    small, large = (statistics.median(t[2:]) for t in times)
    return Measurement(max(large - small, 1e-12) / (sizes[1] - sizes[0]), 0.0, 8)


_RELU, _PRODUCT = "Relu", "MatMul"


def _small(number: int, op_type: str) -> Module:
    """A step of a chain: next to no work, or enough for the other device to fall asleep.

    Waking a thread that has slept for a while takes longer than one that has just gone to sleep.
    """
    shape = (16, 1) if op_type == _RELU else (384, 384)
    before, after = (Tensor(f"v{n}", shape, "float32") for n in (number, number + 1))
    infos = [onnx.helper.make_tensor_value_info(t.name, 1, t.shape) for t in (before, after)]
    inputs = [before.name] if op_type == _RELU else [before.name, before.name]
    node = onnx.helper.make_node(op_type, inputs, [after.name])
    graph = onnx.helper.make_graph([node], "small", infos[:1], infos[1:])
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    return Module(model.SerializeToString(), {}, (before,), (after,))
