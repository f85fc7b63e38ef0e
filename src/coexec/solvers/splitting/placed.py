"""Where the parts of tensors lie while a plan of shares grows, and what a strip costs there."""

import math
from collections.abc import Sequence

from coexec.ir.parts import TaskParts
from coexec.ir.region import Region
from coexec.ir.stitch import in_sequence, missing
from coexec.problem.problem import Problem
from coexec.solvers.splitting.shares import Cut, Dimension, axis_of, cuts_of, parts
from coexec.solvers.splitting.strips import Fetch, Held, Parts, Portion, Strips

__all__ = ["Sharing"]

_Sources = tuple[tuple[int, int] | None, tuple[tuple[int, int], ...]]
"""Of a region that has to be put together, its bytes and those that its reader has made itself; and
its other owners with the bytes that each gives."""


class Sharing:
    """What it costs to divide the tasks of a problem. It remembers what it was asked: searches ask
    the same again and again, and networks repeat their tasks."""

    def __init__(self, problem: Problem, steps: int, channel_block: int) -> None:
        """``steps`` and ``channel_block`` are those of the cuts to choose from."""
        self.problem = problem
        self.alone = [Cut(None, tuple(int(d == device) for d in problem.devices))
                      for device in problem.devices]  # fmt: skip
        """Each device computes all."""
        self._steps, self._channel_block = steps, channel_block
        self._parts = [problem.parts.of(task) for task in problem.graph.tasks]
        numbers: dict[tuple[TaskParts, tuple[float, ...]], int] = {}
        self.kind = [
            numbers.setdefault(alike, len(numbers))
            for alike in zip(self._parts, problem.latency_s, strict=True)
        ]
        """By task, a number that is equal for tasks that are alike and take equally long."""
        self._cuts: dict[tuple[TaskParts, Dimension], Sequence[Cut]] = {}
        self._shares: dict[tuple[tuple[int, ...], Cut], tuple[Portion, ...] | None] = {}
        self._part_s: dict[tuple[TaskParts, float, int, Region], float] = {}
        self._fetches: dict[tuple[int, int, Parts, Region], _Sources] = {}

    def whole(self, number: int) -> Region:
        """Of the main output of a task."""
        return self._parts[number].whole

    def cuts(self, number: int, dimension: Dimension) -> Sequence[Cut]:
        """The cuts of a task along a dimension; none where it cannot be divided."""
        parts = self._parts[number]
        key = parts, dimension
        if key not in self._cuts:
            axis = axis_of(parts.graph, parts.task, dimension)
            block = self._channel_block if dimension == "OC" else 1
            self._cuts[key] = () if axis is None else cuts_of(
                parts.whole, axis, len(self.problem.devices), self._steps, block)  # fmt: skip
        return self._cuts[key]

    def strips(self, tasks: tuple[int, ...], cut: Cut, held: Held) -> Strips | None:
        """The strips of a chain of tasks, each reading the one before and nothing else; None if
        that cannot be: a task does not run on a device with a share, or two devices would compute
        the same.

        The last task is divided as ``cut`` says. Before it, each device computes what its own part
        is computed from.
        """
        shares = self.shares(tasks, cut)
        if shares is None:
            return None
        fetches = tuple(
            [self.fetches(tasks[0], regions[0], device, held) for device, regions, _ in shares]
        )
        return Strips.of(self.problem, tasks, cut, shares, (tasks,) * len(shares), fetches)

    def shares(self, tasks: tuple[int, ...], cut: Cut) -> tuple[Portion, ...] | None:
        """What each device computes in `strips`."""
        key = tuple([self.kind[task] for task in tasks]), cut
        if key not in self._shares:
            self._shares[key] = self._shared(tasks, cut)
        return self._shares[key]

    def fetches(self, number: int, region: Region, device: int, held: Held) -> tuple[Fetch, ...]:
        """What a device gets of others for a region of a task."""
        task = self.problem.graph.tasks[number]
        needed = self._parts[number].needed(region) or ()
        found = [
            self.fetch(name, box, device, held[name])
            for name, box in zip(task.inputs, needed, strict=True)
            if name in held
        ]
        return tuple([fetch for fetch in found if fetch is not None])

    def fetch(self, name: str, region: Region, device: int, there: Parts) -> Fetch | None:
        """What a device gets of others for a region of a tensor, if it has not got it all."""
        if all(owner == device for owner, _ in there):
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
        """Seconds of pieces in one launch; infinite where a task does not run."""
        each_s = [self._one_s(n, r, device) for n, r in zip(tasks, regions, strict=True)]
        if math.inf in each_s:
            return math.inf
        return math.fsum(each_s) - (len(each_s) - 1) * self.problem.launches_s[device]

    def _one_s(self, number: int, region: Region, device: int) -> float:
        """Tasks that are alike, and as a whole take equally long, do so in part."""
        problem, parts = self.problem, self._parts[number]
        whole_s = problem.latency_s[number][device]
        if whole_s == math.inf or region == parts.whole:
            return whole_s
        key = parts, whole_s, device, region
        if key not in self._part_s:
            part_s = problem.remembered_cost.parts_s(parts, problem.system.places[device])
            self._part_s[key] = part_s(problem.graph.tasks[number], region)
        return self._part_s[key]

    def _sources(self, name: str, region: Region, device: int, there: Parts) -> _Sources:
        item_bytes = self.problem.graph.tensors[name].item_bytes
        sources = list[tuple[int, int]]()
        rest = missing(region, [part for owner, part in there if owner == device])
        own = region.size - sum(box.size for box in rest)
        stitched = None
        if self._stitched(name, region, there):
            stitched = region.size * item_bytes, own * item_bytes
        for owner, part in there:
            items = sum(box.overlap(part).size for box in rest) if owner != device else 0
            if items:
                sources.append((owner, items * item_bytes))
                rest = tuple(left for box in rest for left in missing(box, [part]))
        return stitched, tuple(sources)

    def _stitched(self, name: str, region: Region, there: Parts) -> bool:
        """Whether a region has to be put together: its makers cannot write it side by side."""
        whole = self.problem.graph.tensors[name].whole
        parts = [part for _, part in there if part.overlap(region).size]
        return not (region in parts or (region == whole and in_sequence(set(parts), region)))

    def _shared(self, tasks: tuple[int, ...], cut: Cut) -> tuple[Portion, ...] | None:
        found: list[Portion] = []
        for device, region in enumerate(parts(self.whole(tasks[-1]), cut)):
            if region is None:
                continue
            regions = self._backwards(tasks, region)
            if regions is None or any(_in_common(regions, other.regions) for other in found):
                return None
            compute_s = self.compute_s(tasks, regions, device)
            if compute_s == math.inf:
                return None
            found.append(Portion(device, regions, compute_s))
        return tuple(found)

    def _backwards(self, tasks: tuple[int, ...], region: Region) -> tuple[Region, ...] | None:
        """What one device computes, from the first task to the last; None if a task cannot be
        divided so."""
        found = [region]
        for number in tasks[:0:-1]:
            needed = self._parts[number].needed(found[-1])
            if needed is None:
                return None
            found.append(needed[0])
        return None if self._parts[tasks[0]].needed(found[-1]) is None else tuple(found[::-1])


def _in_common(some: Sequence[Region], others: Sequence[Region]) -> bool:
    """Whether two devices would compute the same of a task."""
    return any(one == other for one, other in zip(some, others, strict=True))
