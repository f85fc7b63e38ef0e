"""Where the parts of tensors lie while a plan of shares grows, and what a strip costs there."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coexec.ir.graph import Piece
from coexec.ir.region import Region
from coexec.ir.stitch import in_sequence, missing
from coexec.problem.problem import Problem
from coexec.solvers.splitting.needs import Needs
from coexec.solvers.splitting.shares import Cut, Dimension, axis_of, cuts_of, parts

__all__ = ["Fetch", "Held", "Parts", "Portion", "Sharing", "Strips"]

Parts = tuple[tuple[int, Region], ...]
"""Devices with the region of a tensor that each has."""

Held = Mapping[str, Parts]
"""By tensor that is still read, where its parts lie. Inputs of the model are not listed: all
devices have them."""


class Portion(NamedTuple):
    """What one device computes in one go."""

    device: int
    pieces: tuple[Piece, ...]
    compute_s: float
    """With one launch for all of them."""


class Fetch(NamedTuple):
    """A part of a tensor of which a device lacks something."""

    name: str
    region: Region
    copy_s: float
    latencies_s: tuple[tuple[int, float], ...]
    """Of the devices that make what it lacks, each with the latency of its link."""


@dataclass(frozen=True, slots=True)
class Strips:
    """What the devices compute of some tasks, handing over nothing inside."""

    tasks: tuple[int, ...]
    cut: Cut | None
    """Of the last task; None where devices compute different tasks."""
    shares: tuple[Portion, ...]
    fetches: tuple[tuple[Fetch, ...], ...]
    """By share, what its device gets of others first."""
    durations_s: tuple[float, ...]
    """By share, seconds of copying and computing: where nothing is handed over, devices go on
    within a launch."""

    @classmethod
    def of(
        cls, problem: Problem, tasks: tuple[int, ...], cut: Cut | None, shares: tuple[Portion, ...],
        fetches: tuple[tuple[Fetch, ...], ...],
    ) -> "Strips":  # fmt: skip
        """With durations that follow from the rest."""
        alone = not any(fetches)
        durations_s = tuple(
            math.fsum(fetch.copy_s for fetch in own)
            + max(0.0, compute_s - alone * problem.launches_s[device])
            for (device, _, compute_s), own in zip(shares, fetches, strict=True)
        )
        return cls(tasks, cut, shares, fetches, durations_s)

    @property
    def seconds(self) -> float:
        """Until the last device has ended, if all begin when everything that they read is made."""
        return max(
            duration_s + max((s for f in own for _, s in f.latencies_s), default=0.0)
            for duration_s, own in zip(self.durations_s, self.fetches, strict=True)
        )

    def made(self, problem: Problem) -> list[tuple[str, int, Region]]:
        """Tensors, devices and which part of the tensor these have now that they had not."""
        graph = problem.graph
        found = [
            (f.name, share.device, f.region)
            for share, own in zip(self.shares, self.fetches, strict=True)
            for f in own
        ]
        for device, pieces, _ in self.shares:
            for piece in pieces:
                main, *others = graph.task[piece.task].outputs
                found.append((main, device, piece.region))
                found += [(name, device, graph.tensors[name].whole) for name in others]
        return found  # fmt: skip


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
        self._needs = Needs(problem.graph)
        self._cuts: dict[tuple[int, Dimension], Sequence[Cut]] = {}
        self._shares: dict[tuple[tuple[int, ...], Cut], tuple[Portion, ...] | None] = {}
        self._piece_s: dict[tuple[int, float, int, Region], float] = {}
        self._fetches: dict[tuple[int, int, Parts, Region], Fetch | None] = {}

    def cuts(self, number: int, dimension: Dimension) -> Sequence[Cut]:
        """The cuts of a task along a dimension; none where it cannot be divided."""
        graph = self.problem.graph
        task = graph.tasks[number]
        key = self._needs.form(task), dimension
        if key not in self._cuts:
            axis = axis_of(graph, task, dimension)
            block = self._channel_block if dimension == "OC" else 1
            devices, whole = len(self.problem.devices), graph.output_of(task).whole
            self._cuts[key] = () if axis is None else cuts_of(
                whole, axis, devices, self._steps, block)  # fmt: skip
        return self._cuts[key]

    def strips(self, tasks: tuple[int, ...], cut: Cut, held: Held) -> Strips | None:
        """The strips of a chain of tasks, each reading the one before; None if that cannot be: a
        task does not run on a device with a share, or two devices would compute the same.

        The last task is divided as ``cut`` says. Before it, each device computes what its own part
        is computed from.
        """
        shares = self.shares(tasks, cut)
        if shares is None:
            return None
        fetches = tuple(
            self.fetches(tasks[0], pieces[0].region, device, held) for device, pieces, _ in shares
        )
        return Strips.of(self.problem, tasks, cut, shares, fetches)

    def shares(self, tasks: tuple[int, ...], cut: Cut) -> tuple[Portion, ...] | None:
        """What each device computes in `strips`."""
        key = tasks, cut
        if key not in self._shares:
            self._shares[key] = self._shared(tasks, cut)
        return self._shares[key]

    def fetches(self, number: int, region: Region, device: int, held: Held) -> tuple[Fetch, ...]:
        """What a device gets of others for a region of a task."""
        task = self.problem.graph.tasks[number]
        needed = self._needs.of(task, region) or ()
        found = (
            self.fetch(name, box, device, held[name])
            for name, box in zip(task.inputs, needed, strict=True)
            if name in held
        )
        return tuple(fetch for fetch in found if fetch is not None)

    def fetch(self, name: str, region: Region, device: int, there: Parts) -> Fetch | None:
        """What a device gets of others for a region of a tensor, if it has not got it all."""
        item_bytes = self.problem.graph.tensors[name].item_bytes
        key = item_bytes, device, there, region
        if key not in self._fetches:
            self._fetches[key] = self._fetched(name, region, device, there)
        found = self._fetches[key]
        return found if found is None or found.name == name else found._replace(name=name)

    def compute_s(self, tasks: Sequence[int], pieces: Sequence[Piece], device: int) -> float:
        """Seconds of pieces in one launch; infinite where a task does not run."""
        each_s = [self._one_s(n, p.region, device) for n, p in zip(tasks, pieces, strict=True)]
        if math.inf in each_s:
            return math.inf
        return math.fsum(each_s) - (len(each_s) - 1) * self.problem.launches_s[device]

    def _one_s(self, number: int, region: Region, device: int) -> float:
        """Tasks that are alike, and as a whole take equally long, do so in part."""
        problem = self.problem
        task, whole_s = problem.graph.tasks[number], problem.latency_s[number][device]
        if whole_s == math.inf or region == problem.graph.output_of(task).whole:
            return whole_s
        key = self._needs.form(task), whole_s, device, region
        if key not in self._piece_s:
            place = problem.system.places[device]
            self._piece_s[key] = problem.cost.piece_s(problem.graph, task, region, place)
        return self._piece_s[key]

    def _fetched(self, name: str, region: Region, device: int, there: Parts) -> Fetch | None:
        problem = self.problem
        item_bytes = problem.graph.tensors[name].item_bytes
        copy_s, latencies_s = self._stitch_s(name, region, device, there), list[tuple[int, float]]()
        rest = missing(region, [part for owner, part in there if owner == device])
        for owner, part in there:
            items = sum(box.overlap(part).size for box in rest) if owner != device else 0
            if items:
                link = problem.links[owner][device]
                copy_s += problem.cost.transfer_s(items * item_bytes, link)
                latencies_s.append((owner, link.sync_latency_s))
                rest = tuple(left for box in rest for left in missing(box, [part]))
        return Fetch(name, region, copy_s, tuple(latencies_s)) if latencies_s else None

    def _stitch_s(self, name: str, region: Region, device: int, there: Parts) -> float:
        """Seconds of putting a region together, unless its makers can write it side by side."""
        problem = self.problem
        tensor = problem.graph.tensors[name]
        parts = [part for _, part in there if part.overlap(region).size]
        if region in parts or (region == tensor.whole and in_sequence(set(parts), region)):
            return 0.0
        place = problem.system.places[device]
        return problem.cost.stitch_s(region.size * tensor.item_bytes, place)

    def _shared(self, tasks: tuple[int, ...], cut: Cut) -> tuple[Portion, ...] | None:
        graph = self.problem.graph
        found: list[Portion] = []
        whole = graph.output_of(graph.tasks[tasks[-1]]).whole
        for device, region in enumerate(parts(whole, cut)):
            if region is None:
                continue
            pieces = self._backwards(tasks, region)
            if pieces is None or any(set(pieces) & set(other.pieces) for other in found):
                return None
            compute_s = self.compute_s(tasks, pieces, device)
            if compute_s == math.inf:
                return None
            found.append(Portion(device, pieces, compute_s))
        return tuple(found)

    def _backwards(self, tasks: tuple[int, ...], region: Region) -> tuple[Piece, ...] | None:
        """The pieces of one device, from the first task to the last; None if a task cannot be
        divided so."""
        graph, found = self.problem.graph, list[Piece]()
        for at in reversed(range(len(tasks))):
            task = graph.tasks[tasks[at]]
            found.append(Piece(task.name, region))
            needed = self._needs.of(task, region)
            if needed is None:
                return None
            if at:
                region = needed[task.inputs.index(graph.tasks[tasks[at - 1]].outputs[0])]
        return tuple(found[::-1])
