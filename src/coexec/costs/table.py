"""A cost model that looks everything up: what `coexec.profiling.profiler` found."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from coexec.costs.base import PartSeconds
from coexec.costs.predictor import LatencyPredictor, PartShares
from coexec.errors import PlanError
from coexec.ir.graph import Graph, Piece, Task
from coexec.ir.parts import TaskParts
from coexec.ir.region import Region
from coexec.system.hardware import Link, Place

__all__ = ["Basis", "CostTable", "LayoutChange"]

Basis = Literal["measured", "known", "predicted", "estimated"]
"""Where a time comes from: measured now, or before; predicted from other sizes of the task; or
estimated from what it computes and moves, as it could not be measured."""


@dataclass(frozen=True)
class LayoutChange:
    """What it takes to change the layout of tensors on their way through one memory."""

    tensors: Set[str]
    tensor_s: float
    """Seconds of each that is handed over, besides those of handing over any."""
    byte_s: float
    """Seconds of each byte that is handed over."""


@dataclass(frozen=True)
class CostTable:
    """Seconds by place, that is by device and engine.

    Whole tasks were measured, and perhaps some parts. A part that was not is charged the share of
    its whole that a predictor tells, so that the measured whole stands; without a predictor the
    whole launch and its share of the rest, which is exact in the limit of large regions.
    """

    tasks_s: Mapping[Place, Mapping[str, float]]
    """By place, then by task name: the whole task; infinite where the engine cannot run it."""
    launches_s: Mapping[Place, float] = field(default_factory=dict)
    bases: Mapping[Place, Mapping[str, Basis]] = field(default_factory=dict)
    """By place, then by task that runs there; empty if nobody noted it."""
    stitches_s: Mapping[Place, tuple[float, float]] = field(default_factory=dict)
    """Seconds of a tensor that is put together from boxes, and of each byte of it."""
    pieces_s: Mapping[Place, Mapping[Piece, float]] = field(default_factory=dict)
    """By place, then by piece: the parts of tasks that were measured."""
    predictors: Mapping[Place, LatencyPredictor] = field(default_factory=dict)
    """By place, those that were trained on such a one."""
    feedings_s: Mapping[Place, float] = field(default_factory=dict)
    """By place, seconds for which its thread launches, behind a segment of its own, a segment of
    another device that computes by itself. Charged as a part of each launch: in plans for both,
    nearly each segment has one beside it."""
    layout_changes: Mapping[tuple[Place, Place], LayoutChange] = field(default_factory=dict)
    """By source and target; links between memories were measured with theirs. Of a place to itself:
    of what it has made itself and puts together with what others have made in another layout."""
    disturbed: Mapping[Place, Set[str]] = field(default_factory=dict)
    """By place, the tasks that were measured while other programs used the processors."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        whole_s = self._whole_s(task, place)
        if region.size == graph.output_of(task).whole.size or math.isinf(whole_s):
            return whole_s + self._feeding_s(place)
        return self.parts_s(TaskParts(graph, task), place)(task, region)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        feeding_s, unfed_s = self._feeding_s(place), self._unfed_parts_s(parts, place)
        return lambda task, region: feeding_s + unfed_s(task, region)

    def _unfed_parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        size, launch_s = parts.whole.size, self.launches_s.get(place, 0.0)
        measured_s, predictor = self.pieces_s.get(place, {}), self.predictors.get(place)
        shares = None if predictor is None else PartShares(predictor, parts)

        def part_s(task: Task, region: Region) -> float:
            whole_s = self._whole_s(task, place)
            if region.size == size or math.isinf(whole_s):
                return whole_s
            if (known_s := measured_s.get(Piece(task.name, region))) is not None:
                return known_s
            if shares is not None and (share := shares.of(region)) is not None:
                return whole_s * share
            least_s = min(launch_s, whole_s)
            return least_s + (whole_s - least_s) * region.size / max(1, size)

        return part_s

    def _whole_s(self, task: Task, place: Place) -> float:
        try:
            return self.tasks_s[place][task.name]
        except KeyError:
            raise PlanError(
                f"task {task.name!r} was not measured on {place}; profile the model on it: "
                f"coexec profile MODEL --devices {place}"
            ) from None

    def _feeding_s(self, place: Place) -> float:
        return self.feedings_s.get(place, 0.0)

    def launch_s(self, place: Place) -> float:
        return self.launches_s.get(place, 0.0) + self._feeding_s(place)

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        tensor_s, byte_s = self.stitches_s.get(place, (0.0, 0.0))
        return tensor_s + size_bytes * byte_s + self._change_s(tensor, own_bytes, place, place)

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        source = Place(link.source, link.source_engine)
        target = Place(link.target, link.target_engine)
        return link.copy_s(size_bytes) + self._change_s(tensor, size_bytes, source, target)

    def _change_s(self, tensor: str, size_bytes: int, source: Place, target: Place) -> float:
        change = self.layout_changes.get((source, target))
        if change is None or tensor not in change.tensors:
            return 0.0
        return change.tensor_s + size_bytes * change.byte_s

    def total_s(self, place: Place) -> float:
        """Seconds of all tasks one by one at ``place``."""
        return math.fsum(self.tasks_s[place].values())
