"""CoDL as it was published, on simulated phones: its own cost of sharing, and its Algorithm 1.

The planner `codl` moves only the missing data of a processor, and the other processor continues
meanwhile. The paper's system stores each tensor between two chains as a whole, in the GPU's layout.
For each chain, the CPU receives the complete input of its part and sends back its complete result;
both processors wait for this:

    T = transform + map + sync + max(T_cpu, T_gpu)

With equal costs of computation, this cost of sharing shows the part of the difference to the paper
that the kind of sharing causes. Errors of the printed algorithm are corrected: each ratio begins at
the head again, the gains of all steps count, and a head that joins no chain stays alone.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from codl_plans import HEAVY, Chain

from coexec.graph.graph import Graph, Task
from coexec.graph.receptive import needed_inputs, splittable_axes
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.research.platforms import Platform

__all__ = ["CHANNELS", "ROWS", "STEPS", "Step", "chains", "fixed", "published", "total_s"]

CHANNELS, ROWS = 1, 2
"""Axes of a feature map [N, C, H, W]."""
STEPS = 10
BLOCK = 4
_MOST = 3
"""Maximum difference, in steps, between the ratio of a chain and the best ratio of its head."""
_LONGEST = 30


class Step(NamedTuple):
    """Consecutive tasks with one ratio, the last of them divided along ``axis``."""

    tasks: range
    axis: int
    gpu: int
    """The GPU's share of the last task's output, in tenths."""
    seconds: float


class _Model:
    def __init__(self, graph: Graph, phone: Platform) -> None:
        self.graph, self._cost = graph, phone.cost
        self.cpu, self._gpu = phone.system.places
        self._to_cpu = phone.system.link(self._gpu, self.cpu)
        self._to_gpu = phone.system.link(self.cpu, self._gpu)

    def ways(self, number: int, axes: Sequence[int]) -> Iterator[Step]:
        """All steps that compute only the task ``number``."""
        able = splittable_axes(self.graph, self.graph.tasks[number])
        for axis in [axis for axis in axes if axis in able] or [0]:
            for gpu in range(STEPS + 1):
                if axis or gpu in (0, STEPS):
                    yield self.step(range(number, number + 1), axis, gpu)

    def step(self, tasks: range, axis: int, gpu: int) -> Step:
        last = self.graph.tasks[tasks[-1]]
        whole = self.graph.output_of(last).whole
        seconds = 0.0
        for place, region in parts(whole, axis, gpu, self.cpu, self._gpu).items():
            seconds = max(seconds, self._compute_s(tasks, region, place))
        own = parts(whole, axis, gpu, self.cpu, self._gpu).get(self.cpu)
        if own is not None:
            seconds += self._sharing_s(tasks, own)
        return Step(tasks, axis, gpu, seconds)

    def _backwards(self, tasks: range, region: Region) -> Iterator[tuple[Task, Region]]:
        """The receptive field, in each task, of a region of the last task."""
        for number in reversed(tasks):
            task = self.graph.tasks[number]
            yield task, region
            if number != tasks[0]:
                before = self.graph.tasks[number - 1].outputs[0]
                region = needed_inputs(self.graph, task, region)[before]

    def _compute_s(self, tasks: range, region: Region, place: Place) -> float:
        own = self._backwards(tasks, region)
        return math.fsum(self._cost.piece_s(self.graph, task, part, place) for task, part in own)

    def _sharing_s(self, tasks: range, own: Region) -> float:
        """Seconds to move the input of the CPU's part to the CPU, and its result to the GPU."""
        graph = self.graph
        *_, (head, region) = self._backwards(tasks, own)
        needed = needed_inputs(graph, head, region)
        read_bytes = sum(
            box.size * graph.tensors[name].item_bytes
            for name, box in needed.items()
            if name in graph.producer
        )
        made_bytes = own.size * graph.output_of(graph.tasks[tasks[-1]]).item_bytes
        there, back = self._to_cpu, self._to_gpu
        copies_s = there.copy_s(read_bytes) + back.copy_s(made_bytes)
        return there.sync_latency_s + back.sync_latency_s + copies_s


def parts(whole: Region, axis: int, gpu: int, on_cpu: Place, on_gpu: Place) -> dict[Place, Region]:
    """The region of each processor. The GPU has the first rows or channels, in whole blocks."""
    if gpu in (0, STEPS) or not axis:
        return {on_gpu if gpu else on_cpu: whole}
    block = BLOCK if axis == CHANNELS else 1
    size = whole.stop[axis]
    first = min(size, math.ceil(size * gpu / STEPS / block) * block)
    regions = {on_gpu: whole.with_axis(axis, 0, first)}
    return regions | ({on_cpu: whole.with_axis(axis, first, size)} if first < size else {})


def published(graph: Graph, phone: Platform, axes: Sequence[int], *, chained: bool) -> list[Step]:
    """The steps of CoDL's own executor for ``graph``, with the divisions of CoDL's own planner.

    Args:
        axes: axes along which tasks may be divided.
        chained: whether tasks that are divided by rows are joined to chains.
    """
    model, steps, at = _Model(graph, phone), list[Step](), 0
    while at < len(graph.tasks):
        step = _alone(model, at, axes)
        if chained and step.axis in (0, ROWS):
            step = _chain(model, step, axes)
        steps.append(step)
        at = step.tasks.stop
    return steps


def fixed(graph: Graph, phone: Platform, gpu: int) -> list[Step]:
    """Steps that divide each task by output channels, with ``gpu`` tenths for the GPU. The CPU
    computes the tasks that cannot be divided."""
    model, steps = _Model(graph, phone), []
    for number, task in enumerate(graph.tasks):
        axis = CHANNELS if CHANNELS in splittable_axes(graph, task) else 0
        steps.append(model.step(range(number, number + 1), axis, gpu if axis else 0))
    return steps


def _alone(model: _Model, number: int, axes: Sequence[int]) -> Step:
    return min(model.ways(number, axes), key=lambda step: step.seconds)


def _chain(model: _Model, head: Step, axes: Sequence[int]) -> Step:
    """Algorithm 1: the chain from ``head`` that saves most, over all ratios near the head's."""
    best, best_gain_s = head, 0.0
    for start in model.ways(head.tasks[0], (ROWS,)):
        if abs(start.gpu - head.gpu) > _MOST:
            continue
        chain, gain_s = start, head.seconds - start.seconds
        while len(chain.tasks) < _LONGEST and _continues(model.graph, chain.tasks[-1]):
            longer = model.step(range(chain.tasks.start, chain.tasks.stop + 1), ROWS, chain.gpu)
            apart = _alone(model, chain.tasks.stop, axes)
            step_s = chain.seconds + apart.seconds - longer.seconds
            if step_s < 0:
                break
            chain, gain_s = longer, gain_s + step_s
            if gain_s >= best_gain_s:
                best, best_gain_s = chain, gain_s
    return best


def _continues(graph: Graph, number: int) -> bool:
    """Whether the next task is the only reader of the task's output, reads nothing else, and can be
    cut by rows."""
    if number + 1 == len(graph.tasks):
        return False
    end, task = graph.tasks[number], graph.tasks[number + 1]
    alone = len(end.outputs) == 1 and end.outputs[0] not in graph.outputs
    alone = alone and len(graph.readers[end.outputs[0]]) == 1
    return alone and task.inputs == end.outputs and ROWS in splittable_axes(graph, task)


def total_s(steps: Sequence[Step]) -> float:
    """Seconds of all steps, one after the other."""
    return math.fsum(step.seconds for step in steps)


def chains(graph: Graph, steps: Sequence[Step]) -> list[Chain]:
    """The chains in the form in which the paper lists them."""
    lengths = (sum(graph.tasks[n].operators[0].op_type in HEAVY for n in s.tasks) for s in steps)
    return [Chain(n, step.gpu / STEPS) for n, step in zip(lengths, steps, strict=True) if n]
