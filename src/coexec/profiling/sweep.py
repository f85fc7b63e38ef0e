"""Time tasks in place: one after the other, each a segment of its own.

So caches are as cold as in a real inference. If each task is timed in a loop, it seems up to 10 %
faster.
"""

import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import onnx

from coexec.arrays import is_float, numpy_type
from coexec.engines.opened import OpenDevice
from coexec.graph.graph import Task, Tensor
from coexec.model.inputs import random_values
from coexec.model.model import Model
from coexec.plan.schedule import Schedule
from coexec.profiling.activity import Quiet, undisturbed
from coexec.profiling.processors import Load, ProcessorTime, processor_time, with_load
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.loaded_plan import Installing
from coexec.runtime.recorder import RealRecorder
from coexec.settings import Effort
from coexec.timing.trace import Detail, Span, Trace

_ENOUGH = 3
"""Least number of runs for a median."""


@dataclass(frozen=True, eq=False)
class SweepItem:
    """Some tasks of a model, or pieces of them, in order, each compiled as a segment of its own."""

    tasks: Sequence[Task]
    """Task of each segment."""
    compiled: CompiledPlan

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """Index of the segment of each value that a kernel may work on, by name of the value."""
        segment_of_value: dict[str, int] = {}
        for index, (task, module) in enumerate(zip(self.tasks, self.compiled.modules, strict=True)):
            nodes = onnx.load_model_from_string(module.proto).graph.node
            segment_of_value |= {name: index for op in task.operators for name in op.outputs}
            segment_of_value |= {name: index for node in nodes for name in node.output}
        return segment_of_value


class SegmentTimes(NamedTuple):
    """Times of the segments of a part in one run."""

    kernels_s: list[float]
    """Seconds of each segment: only of its kernels, if the device has a clock of its own."""
    launches_s: list[float]
    """Additional seconds of each segment: the same for all on such devices, 0 on others."""
    load: Load = Load()
    """Load by other programs during the run."""

    @property
    def seconds(self) -> list[float]:
        """Total seconds of each segment."""
        pairs = zip(self.kernels_s, self.launches_s, strict=True)
        return [kernels_s + launch_s for kernels_s, launch_s in pairs]


def others_share(runs: Iterable[SegmentTimes]) -> float:
    """Least share of the processor time that other programs used in all runs together."""
    return reduce(Load.plus, (run.load for run in runs), Load()).least_share


def medians_s(runs: Sequence[SegmentTimes]) -> list[float]:
    """Median seconds of each segment over all runs."""
    columns = zip(*(run.seconds for run in runs), strict=True)
    return [statistics.median(column) for column in columns]


def part_of(whole: SweepItem, chosen: Sequence[int]) -> SweepItem | None:
    """A part with only the tasks at the positions ``chosen``.

    Tensors that they read of other tasks become inputs. Outputs of the model stay outputs, because
    they may have no memory before they are computed. None if the values of a new input may decide
    what an operator does (indices, sizes, conditions): random values would not suit.
    """
    compiled = whole.compiled
    modules = tuple(compiled.modules[i] for i in chosen)
    made = {tensor.name for module in modules for tensor in module.outputs}
    inputs = {t.name: t for module in modules for t in module.inputs if t.name not in made}
    input_names = {tensor.name for tensor in compiled.inputs}
    if not all(name in input_names or _is_any(tensor) for name, tensor in inputs.items()):
        return None
    segments = tuple(
        replace(compiled.segments[i], index=index, after=(index - 1,) if index else ())
        for index, i in enumerate(chosen)
    )
    outputs = tuple(tensor for tensor in compiled.outputs if tensor.name in made)
    part = CompiledPlan(tuple(inputs.values()), outputs, {}, {}, segments, (), modules)
    return SweepItem([whole.tasks[i] for i in chosen], part)


def _is_any(tensor: Tensor) -> bool:
    """Whether operators take the same time for any values: floats, quantised numbers."""
    return not tensor.opaque and (
        is_float(numpy_type(tensor.dtype)) or tensor.dtype in ("int8", "uint8")
    )


def feeds_of(part: SweepItem, model: Model) -> Iterator[dict[str, Any]]:
    """Inputs of ``part``, to be tried one after the other."""
    for feeds in model.candidates():
        between = (t for t in part.compiled.inputs if t.name not in feeds)
        yield feeds | random_values(between)


def sweep(
    part: SweepItem,
    devices: Sequence[OpenDevice],
    feeds: Mapping[str, Any],
    effort: Effort,
    progress: Callable[[int, int], None],
    quiet: Quiet | None = None,
    processors: Callable[[], ProcessorTime] = processor_time,
    installing: Installing | None = None,
) -> list[SegmentTimes]:
    """Times of the segments in each run. Runs are repeated until the sum of the times is stable.

    Runs in which the host of a virtual machine took processor time count only if there are too few
    other runs.

    Raises:
        ExecutionError: a task does not run with these inputs.
    """
    runs: list[SegmentTimes] = []
    doubtful: list[SegmentTimes] = []
    with Executor(part.compiled, devices, installing=installing) as executor:
        for _ in range(effort.warm_up):
            executor.run(feeds)
        started_s = time.perf_counter()
        for count in range(effort.most):
            late = count >= effort.least and time.perf_counter() - started_s > effort.budget_s
            if late or (len(runs) >= effort.least and _stable(runs, effort)):
                break
            recorder = RealRecorder(part.compiled, [d.spec.name for d in devices])
            run = partial(with_load, partial(executor.run, feeds, recorder), processors=processors)
            _, load = undisturbed(run, quiet)
            kept = doubtful if load.processors.doubtful else runs
            kept.append(_taken(recorder.trace(), part)._replace(load=load))
            progress(count + 1, effort.most)
    progress(effort.most, effort.most)
    return runs if len(runs) >= min(_ENOUGH, effort.least) else runs + doubtful


def measure_in_place(
    compiler: Compiler, schedule: Schedule, devices: Sequence[OpenDevice], runs: int = 7
) -> dict[str, float]:
    """Median seconds of each task, by name, for a schedule with one segment per task, in order."""
    tasks = schedule.graph.tasks
    part = SweepItem(tasks, compiler.compile(schedule, devices))
    effort = Effort(least=runs, most=runs)
    _, measured = compiler.model.accepted(
        lambda feeds: sweep(part, devices, feeds, effort, lambda done, total: None)
    )
    return dict(zip((task.name for task in tasks), medians_s(measured), strict=True))


def _taken(trace: Trace, part: SweepItem) -> SegmentTimes:
    """Times of the segments of one run; a segment is a task, or a piece of one.

    A device with a clock of its own reports the times of its kernels, which do not have the noise
    of waiting for them. A kernel that ends before the next one is enqueued costs as much as
    enqueuing. The additional time of a segment besides its kernels is the launch: the median over
    all segments.
    """
    spans = {s.segment: s for s in trace.of("compute")}
    maker = part.makers
    kernels: dict[int, list[Detail]] = {}
    for detail in trace.details:
        if detail.kind == "kernel" and detail.result in maker and detail.name != "reorder":
            kernels.setdefault(maker[detail.result], []).append(detail)
    steps = [b.queued_s - a.queued_s for d in kernels.values() for a, b in pairwise(d)]
    enqueue_s = statistics.median(steps) if steps else 0.0
    busy = {i: sum(max(k.duration_s, enqueue_s) for k in done) for i, done in kernels.items()}
    timed = {spans[i].device for i in busy}
    layout_s = _layouts_within(spans, trace.of("layout"))
    extra = [
        spans[i].duration_s - busy.get(i, 0.0) - layout_s[i]
        for i in range(len(part.tasks))
        if spans[i].device in timed
    ]
    launch_s = max(0.0, statistics.median(extra)) if extra else 0.0
    has_clock = [spans[i].device in timed for i in range(len(part.tasks))]
    return SegmentTimes(
        [busy.get(i, 0.0) if own else spans[i].duration_s for i, own in enumerate(has_clock)],
        [launch_s if own else 0.0 for own in has_clock],
    )


def _layouts_within(spans: Mapping[int, Span], layouts: Sequence[Span]) -> Mapping[int, float]:
    """Seconds of each segment's span in which the device changed the layout of its inputs. They
    belong to a transfer: without this correction, every task that runs alone would seem to need
    them."""
    order = sorted(spans.items(), key=lambda item: item[1].end_s)
    ends = [span.end_s for _, span in order]
    seconds_by_segment = dict.fromkeys(spans, 0.0)
    for layout in layouts:
        position = bisect_right(ends, layout.start_s)
        while position < len(order) and order[position][1].start_s < layout.end_s:
            segment, span = order[position]
            within_s = min(span.end_s, layout.end_s) - max(span.start_s, layout.start_s)
            seconds_by_segment[segment] += max(0.0, within_s)
            position += 1
    return seconds_by_segment


def _stable(runs: Sequence[SegmentTimes], effort: Effort) -> bool:
    sums = [sum(run.seconds) for run in runs]
    half = statistics.median(sums[: len(sums) // 2])
    return abs(statistics.median(sums) - half) <= effort.stable * half
