"""Computations and messages for one frame of a pipeline plan, and their order.

A tensor at the boundary of two stages lies either in a leader, stitched, or in the shares that made
it. For a stage that exchanges through its leader, all boundary tensors are first sent to this
leader (*forward*), from the leader that has them. Parts that still lie in shares are *gathered*
before, by the leader of the stage that made them. Then each share gets its part (*scatter*). A
stage that exchanges between neighbours uses no leader in between: each share gets its parts from
where they lie (*exchange*), from its own machine first; parts on its own machine do not move. After
the last stage, its leader collects the outputs of the model. The frame itself is in the first
leader from the beginning, and the outputs stay in the last leader. With a *door*, the machine from
which frames come, both are in the door's machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coexec.graph.graph import Graph
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.pipeline.plan.plan import PipelinePlan, boundary
from coexec.pipeline.plan.work import share_strip
from coexec.pipeline.strip import Strip
from coexec.plan.schedule import TaskRegion

Purpose = Literal["forward", "scatter", "gather", "exchange"]


@dataclass(frozen=True, slots=True)
class Computation:
    """Computation of a share."""

    stage: int
    share: int
    machine: str
    strip: Strip


@dataclass(frozen=True, slots=True)
class Message:
    """Parts of tensors that one machine sends to another one at once."""

    stage: int
    """The stage whose leader or share receives the data of a frame; for a gather, the stage that
    made them."""
    purpose: Purpose
    source: str
    target: str
    parts: tuple[TaskRegion, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Action:
    """A computation or message, and the indices of the earlier actions that must have ended
    before."""

    what: Computation | Message
    after: tuple[int, ...]


def actions(plan: PipelinePlan, graph: Graph, door: str | None = None) -> tuple[Action, ...]:
    """All actions for one frame, in an order in which they could run one by one.

    Args:
        door: the machine that has the frame and gets the outputs; None: the first leader has the
            frame, and the last leader gets the outputs.
    """
    flow = _FrameFlow(plan, graph, door)
    for index, stage in enumerate(plan.stages):
        names = boundary(graph, plan.stages, index)
        if stage.exchange == "leader":
            flow.collect(index, stage.leader, names)
        flow.compute(index)
    count = len(plan.stages)
    if plan.stages:
        outputs = boundary(graph, plan.stages, count)
        flow.collect(count, plan.stages[-1].leader, outputs)
        if door is not None:
            flow.collect(count, door, outputs)
    return tuple(flow.found)


@dataclass(frozen=True, slots=True)
class _RegionCopy:
    """A region of a tensor that a machine has once some actions have ended."""

    machine: str
    region: Region
    after: tuple[int, ...]


class _FrameFlow:
    def __init__(self, plan: PipelinePlan, graph: Graph, door: str | None) -> None:
        self._plan, self._graph = plan, graph
        self.found: list[Action] = []
        first = door or (plan.stages[0].leader if plan.stages else "")
        self._stitched: dict[str, _RegionCopy] = {
            name: _RegionCopy(first, graph.tensors[name].whole, ()) for name in graph.inputs
        }
        """Copy of the whole tensor in a leader, by tensor."""
        self._made: dict[str, list[_RegionCopy]] = {}
        """Copies that the shares have made, by tensor."""
        self._maker: dict[str, int] = {}

    def collect(self, stage: int, leader: str, names: Sequence[str]) -> None:
        """Bring these tensors into the leader of a stage."""
        loose: dict[int, list[str]] = {}
        for name in names:
            if name not in self._stitched:
                loose.setdefault(self._maker[name], []).append(name)
        for maker, gathered in loose.items():
            self._gather(maker, gathered)
        by_source: dict[str, list[str]] = {}
        for name in names:
            by_source.setdefault(self._stitched[name].machine, []).append(name)
        for source, moved in by_source.items():
            if source == leader:
                continue
            parts = [(name, self._stitched[name].region) for name in moved]
            after = _union(self._stitched[name].after for name in moved)
            number = self._send(stage, "forward", source, leader, parts, after)
            for name, region in parts:
                self._stitched[name] = _RegionCopy(leader, region, (number,))

    def compute(self, index: int) -> None:
        """Compute all shares of a stage, each after it has received its parts."""
        stage = self._plan.stages[index]
        for number, share in enumerate(stage.shares):
            strip = share_strip(self._graph, stage, number)
            waits: list[int] = []
            direct = stage.exchange == "neighbours"
            sources = self._sources(strip.reads, share.machine, direct)
            for source, (parts, after) in sources.items():
                if source == share.machine:
                    waits += after
                else:
                    purpose: Purpose = "exchange" if direct else "scatter"
                    waits.append(self._send(index, purpose, source, share.machine, parts, after))
            done = self._add(Computation(index, number, share.machine, strip), waits)
            for name, region in share.outputs:
                self._made.setdefault(name, []).append(_RegionCopy(share.machine, region, (done,)))
                self._maker[name] = index

    def _gather(self, stage: int, names: Sequence[str]) -> None:
        """Bring the parts that shares of a stage have made into its leader."""
        leader = self._plan.stages[stage].leader
        arrived: dict[str, list[int]] = {name: [] for name in names}
        parts: dict[str, list[tuple[str, _RegionCopy]]] = {}
        for name in names:
            for copy in self._made[name]:
                parts.setdefault(copy.machine, []).append((name, copy))
        for machine, copies in parts.items():
            after = _union(copy.after for _, copy in copies)
            if machine != leader:
                sent = [(name, copy.region) for name, copy in copies]
                after = (self._send(stage, "gather", machine, leader, sent, after),)
            for name, _ in copies:
                arrived[name] += after
        for name, waits in arrived.items():
            whole = self._graph.tensors[name].whole
            self._stitched[name] = _RegionCopy(leader, whole, tuple(dict.fromkeys(waits)))

    def _sources(
        self, reads: Iterable[TaskRegion], reader: str, direct: bool
    ) -> Mapping[str, tuple[list[TaskRegion], tuple[int, ...]]]:
        """By machine: the parts of ``reads`` that come from there, and the actions that must have
        ended before.

        ``direct``: take a tensor from the shares that made it, if there are any.
        """
        parts: dict[str, list[TaskRegion]] = {}
        waits: dict[str, list[int]] = {}
        for name, region in reads:
            made = self._made.get(name) if direct else None
            copies = made or [self._stitched[name]]
            uncovered: tuple[Region, ...] = (region,)
            for copy in sorted(copies, key=lambda copy: copy.machine != reader):
                overlaps = [(name, box.overlap(copy.region)) for box in uncovered]
                overlaps = [part for part in overlaps if part[1].size or not region.size]
                if overlaps:
                    parts.setdefault(copy.machine, []).extend(overlaps)
                    waits.setdefault(copy.machine, []).extend(copy.after)
                uncovered = tuple(gap for box in uncovered for gap in missing(box, [copy.region]))
        return {
            source: (source_parts, tuple(dict.fromkeys(waits[source])))
            for source, source_parts in parts.items()
        }

    def _send(
        self,
        stage: int,
        purpose: Purpose,
        source: str,
        target: str,
        parts: Sequence[TaskRegion],
        after: Iterable[int],
    ) -> int:
        tensors = self._graph.tensors
        size_bytes = sum(region.size * tensors[name].item_bytes for name, region in parts)
        message = Message(stage, purpose, source, target, tuple(parts), size_bytes)
        return self._add(message, after)

    def _add(self, what: Computation | Message, after: Iterable[int]) -> int:
        self.found.append(Action(what, tuple(dict.fromkeys(after))))
        return len(self.found) - 1


def _union(groups: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number for group in groups for number in group))
