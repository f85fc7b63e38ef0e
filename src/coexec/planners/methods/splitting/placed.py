"""Costs of shares and strips, given which devices have which parts of the tensors."""

import math
from collections.abc import Sequence

from coexec.graph.region import Region
from coexec.graph.stitch import in_sequence, missing
from coexec.graph.task_samples import TaskParts
from coexec.planners.methods.splitting.shares import (
    Cut,
    Dimension,
    allowed_steps,
    axis_of,
    cuts_of,
    parts,
)
from coexec.planners.methods.splitting.strips import (
    Fetch,
    Incoming,
    Portion,
    StripRegions,
    Strips,
)
from coexec.planners.methods.splitting.walk import Reached
from coexec.problem.problem import Problem

_LEAST_S = 1e-12
"""Lower bound for the seconds of a task, so that rates are finite."""

_Sources = tuple[tuple[int, int] | None, tuple[tuple[int, int], ...]]
"""Two values. If a region has to be stitched: its bytes, and the bytes of it that its reader has
already; otherwise None. Then the other devices with the bytes that each supplies."""


class Sharing:
    """Costs of dividing the tasks of a problem. Results are cached: searches request the same costs
    many times, and networks repeat equal tasks."""

    def __init__(
        self, problem: Problem, steps: int, channel_block: int, delta: float = 1.0
    ) -> None:
        """Set up empty caches.

        Args:
            steps: the number of steps that `cuts` divides a task into.
            channel_block: cuts along channels lie at multiples of this number.
            delta: maximum difference between a device's share and its proportional share.
        """
        self.problem, self.steps = problem, steps
        self.alone = [
            Cut(None, tuple(int(d == device) for d in problem.devices))
            for device in problem.devices
        ]
        """One cut for each device: the device computes the whole task."""
        self._channel_block, self._delta = channel_block, delta
        self._parts = [problem.parts.of(task) for task in problem.graph.tasks]
        numbers: dict[tuple[TaskParts, tuple[float, ...]], int] = {}
        self.kind = [
            numbers.setdefault(alike, len(numbers))
            for alike in zip(self._parts, problem.latency_s, strict=True)
        ]
        """By task, the number of its class: tasks of a class have equal parts and equal times."""
        self._axes: dict[tuple[TaskParts, Dimension], int | None] = {}
        self._cuts: dict[tuple[int, Dimension], Sequence[Cut]] = {}
        self._divided: dict[tuple[TaskParts, Cut], tuple[Region | None, ...]] = {}
        self._shares: dict[tuple[tuple[int, ...], Cut], tuple[Portion, ...] | None] = {}
        self._portions: dict[tuple[tuple[int, ...], int, Region], Portion | None] = {}
        self._part_s: dict[tuple[TaskParts, float, int, Region], float] = {}
        self._fetches: dict[tuple[int, int, StripRegions, Region], _Sources] = {}

    def whole(self, number: int) -> Region:
        """The whole region of the main output of a task."""
        return self._parts[number].whole

    def axis(self, number: int, dimension: Dimension) -> int | None:
        """The axis of a task's main output for a dimension; None if it cannot be divided."""
        parts = self._parts[number]
        key = parts, dimension
        if key not in self._axes:
            self._axes[key] = axis_of(parts.graph, parts.task, dimension)
        return self._axes[key]

    def block(self, dimension: Dimension) -> int:
        """Cuts along a dimension lie at multiples of this number."""
        return self._channel_block if dimension == "OC" else 1

    def proportional(self, number: int) -> list[float]:
        """By device, the share with which all devices would end a task at the same time if costs
        were in proportion to shares; of devices that share a processor, the fastest counts."""
        rates = [1 / max(s, _LEAST_S) for s in self.problem.latency_s[number]]
        if self.problem.shares_processors:
            rows = sorted(zip(rates, self.problem.devices, self.problem.processors, strict=True))
            fastest = {processor: device for _, device, processor in rows}
            rates = [rate if d in fastest.values() else 0.0 for d, rate in enumerate(rates)]
        return [rate / sum(rates) for rate in rates]

    def near(self, number: int, cut: Cut) -> bool:
        """Whether each device's share in a cut is near its proportional share."""
        allowed = allowed_steps(self.proportional(number), self._delta, sum(cut.steps))
        return all(own in numbers for own, numbers in zip(cut.steps, allowed, strict=True))

    def cuts(self, number: int, dimension: Dimension) -> Sequence[Cut]:
        """All cuts of a task along a dimension with shares near the proportional ones; none where
        it cannot be divided."""
        key = self.kind[number], dimension
        if key not in self._cuts:
            axis, block = self.axis(number, dimension), self.block(dimension)
            allowed = allowed_steps(self.proportional(number), self._delta, self.steps)
            self._cuts[key] = (
                ()
                if axis is None
                else cuts_of(self.whole(number), axis, self.steps, block, allowed)
            )
        return self._cuts[key]

    def strips(self, tasks: tuple[int, ...], cut: Cut, state: Reached) -> Strips | None:
        """Strips of a chain of tasks, each of which reads only the result of its predecessor.

        ``cut`` divides the last task. Of the earlier tasks, each device computes the region that
        its part of the last task depends on (its receptive field). The result is None if a device
        cannot run a task of its share, if two devices would compute the same region of a task, or
        if two devices with a share have one processor.
        """
        shares = self.shares(tasks, cut)
        if shares is None:
            return None
        incoming = tuple(
            [self.incoming(tasks[0], regions[0], device, state) for device, regions, _ in shares]
        )
        return Strips.of(self.problem, tasks, cut, shares, (tasks,) * len(shares), incoming)

    def shares(self, tasks: tuple[int, ...], cut: Cut) -> tuple[Portion, ...] | None:
        """The portion of each device in `strips`; None as there."""
        kinds = tuple([self.kind[task] for task in tasks])
        key = kinds, cut
        if key not in self._shares:
            self._shares[key] = self._shared(tasks, kinds, cut)
        return self._shares[key]

    def incoming(self, number: int, region: Region, device: int, state: Reached) -> Incoming:
        """All that a device must fetch to compute a region of a task."""
        key = number, device, region
        incoming = state.incoming.get(key)
        if incoming is None:
            task, parts_of = self.problem.graph.tasks[number], state.parts_of
            needed = self._parts[number].needed(region) or ()
            candidates = [
                self.fetch(name, box, device, parts_of[name])
                for name, box in zip(task.inputs, needed, strict=True)
                if name in parts_of
            ]
            fetches = tuple([fetch for fetch in candidates if fetch is not None])
            incoming = state.incoming[key] = Incoming.of(fetches, state.made_s)
        return incoming

    def fetch(self, name: str, region: Region, device: int, there: StripRegions) -> Fetch | None:
        """The fetch that gives a device a region of a tensor; None if it has the whole region."""
        if all([owner == device for owner, _ in there]):
            return None
        links, cost = self.problem.links, self.problem.cost
        item_bytes = self.problem.graph.tensors[name].item_bytes
        key = item_bytes, device, there, region
        if key not in self._fetches:
            self._fetches[key] = self._sources(name, region, device, there)
        stitched, sources = self._fetches[key]
        if not sources:
            return None
        place = self.problem.system.places[device]
        copy_s = 0.0 if stitched is None else cost.stitch_s(name, *stitched, place)
        for owner, size_bytes in sources:
            copy_s += cost.transfer_s(name, size_bytes, links[owner][device])
        latencies_s = [(owner, links[owner][device].sync_latency_s) for owner, _ in sources]
        return Fetch(name, region, copy_s, tuple(latencies_s))

    def compute_s(self, tasks: Sequence[int], regions: Sequence[Region], device: int) -> float:
        """Seconds of several pieces in one launch; infinite if the device cannot run a task."""
        each_s = [self._one_s(n, r, device) for n, r in zip(tasks, regions, strict=True)]
        if math.inf in each_s:
            return math.inf
        return math.fsum(each_s) - (len(each_s) - 1) * self.problem.launches_s[device]

    def _one_s(self, number: int, region: Region, device: int) -> float:
        """Seconds of a region of one task in a launch of its own.

        Cached by the task's parts and whole time: equal tasks have equal times for equal regions.
        """
        problem, parts = self.problem, self._parts[number]
        whole_s = problem.latency_s[number][device]
        if whole_s == math.inf or region == parts.whole:
            return whole_s
        key = parts, whole_s, device, region
        if key not in self._part_s:
            part_s = problem.remembered_cost.parts_s(parts, problem.system.places[device])
            self._part_s[key] = part_s(problem.graph.tasks[number], region)
        return self._part_s[key]

    def _sources(self, name: str, region: Region, device: int, there: StripRegions) -> _Sources:
        item_bytes = self.problem.graph.tensors[name].item_bytes
        sources = list[tuple[int, int]]()
        missing_boxes = missing(region, [part for owner, part in there if owner == device])
        own_items = region.size - sum(box.size for box in missing_boxes)
        stitched = None
        if self._stitched(name, region, there):
            stitched = region.size * item_bytes, own_items * item_bytes
        for owner, part in there:
            items = sum(box.overlap(part).size for box in missing_boxes) if owner != device else 0
            if items:
                sources.append((owner, items * item_bytes))
                missing_boxes = tuple(
                    left for box in missing_boxes for left in missing(box, [part])
                )
        return stitched, tuple(sources)

    def _stitched(self, name: str, region: Region, there: StripRegions) -> bool:
        """Whether a region has to be stitched, because the parts that its makers write do not form
        it directly in one buffer."""
        whole = self.problem.graph.tensors[name].whole
        parts = [part for _, part in there if part.overlap(region).size]
        return not (region in parts or (region == whole and in_sequence(set(parts), region)))

    def _shared(
        self, tasks: tuple[int, ...], kinds: tuple[int, ...], cut: Cut
    ) -> tuple[Portion, ...] | None:
        used = [p for p, steps in zip(self.problem.processors, cut.steps, strict=True) if steps]
        if len(set(used)) < len(used):
            return None
        portions: list[Portion] = []
        for device, region in enumerate(self._regions(tasks[-1], cut)):
            if region is None:
                continue
            key = kinds, device, region
            if key not in self._portions:
                self._portions[key] = self._portion(tasks, region, device)
            portion = self._portions[key]
            if portion is None:
                return None
            if len(tasks) > 1 and any(_in_common(portion.regions, p.regions) for p in portions):
                return None
            portions.append(portion)
        return tuple(portions)

    def _regions(self, number: int, cut: Cut) -> tuple[Region | None, ...]:
        key = self._parts[number], cut
        if key not in self._divided:
            self._divided[key] = parts(self.whole(number), cut)
        return self._divided[key]

    def _portion(self, tasks: tuple[int, ...], region: Region, device: int) -> Portion | None:
        """What a device computes so that it has ``region`` of the last task; None if it cannot."""
        regions = self._backwards(tasks, region)
        if regions is None:
            return None
        compute_s = self.compute_s(tasks, regions, device)
        return None if compute_s == math.inf else Portion(device, regions, compute_s)

    def _backwards(self, tasks: tuple[int, ...], region: Region) -> tuple[Region, ...] | None:
        """The regions that one device computes, first task first, so that it can compute ``region``
        of the last task; None if a task cannot be divided like this."""
        regions = [region]
        for number in tasks[:0:-1]:
            needed = self._parts[number].needed(regions[-1])
            if needed is None:
                return None
            regions.append(needed[0])
        return None if self._parts[tasks[0]].needed(regions[-1]) is None else tuple(regions[::-1])


def _in_common(first: Sequence[Region], second: Sequence[Region]) -> bool:
    """Whether two devices would compute the same region of a task; regions by task."""
    return any([one == other for one, other in zip(first, second, strict=True)])
