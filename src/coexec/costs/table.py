"""A cost model that looks up the measurements of `coexec.profiling.profiler`."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from coexec.costs.base import PartSeconds, TrainedPredictor
from coexec.errors import PlanError
from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.region import Region
from coexec.graph.task_samples import TaskParts
from coexec.hardware.hardware import Link, Place

Basis = Literal["measured", "known", "predicted", "estimated"]
"""Origin of a time: measured now; known from an earlier measurement; predicted from other sizes of
the task; or estimated from its computation and moved bytes, because it could not be measured."""


@dataclass(frozen=True)
class LayoutChange:
    """Seconds of changing the layout of tensors that are handed over within one memory."""

    tensors: Set[str]
    tensor_s: float
    """Seconds for each tensor that is handed over, besides those that any tensor takes."""
    byte_s: float
    """Seconds for each byte that is handed over."""


@dataclass(frozen=True)
class Reading:
    """Seconds in which a place reads a byte of weights that are in no cache of a core."""

    alone_s: float
    together_s: float
    """While all devices of the system read."""


@dataclass(frozen=True)
class CostTable:
    """Seconds by place, that is by device and engine.

    Whole tasks were measured, and perhaps some parts. A part without a measurement takes its
    predicted share of the measured whole. Without a predictor it takes the whole launch, the time
    of the bytes that it reads, and its share by size of the remaining seconds. The bytes count
    where layers have few rows and many weights: each strip of rows reads all weights.
    """

    tasks_s: Mapping[Place, Mapping[str, float]]
    """Seconds of whole tasks by place, then by task name; infinite where the engine cannot run
    it."""
    launches_s: Mapping[Place, float] = field(default_factory=dict)
    bases: Mapping[Place, Mapping[str, Basis]] = field(default_factory=dict)
    """By place, then by task that runs there; empty if the origins were not recorded."""
    stitches_s: Mapping[Place, tuple[float, float]] = field(default_factory=dict)
    """Seconds for each tensor that is assembled from boxes, and for each byte of it."""
    join_byte_s: float = 0.0
    """Seconds for each byte of an output that is copied from parts to memory of the caller."""
    pieces_s: Mapping[Place, Mapping[Piece, float]] = field(default_factory=dict)
    """Seconds of the parts of tasks that were measured, by place, then by piece."""
    predictors: Mapping[Place, TrainedPredictor] = field(default_factory=dict)
    """Predictor by place, trained on a place of this kind."""
    layout_changes: Mapping[tuple[Place, Place], LayoutChange] = field(default_factory=dict)
    """By source and target place. Links between memories were measured with their layout changes
    included. A pair of equal places: the change of the part that the place has computed itself and
    assembles with parts that others have computed in another layout."""
    readings: Mapping[Place, Reading] = field(default_factory=dict)
    """Where it is known. Without it, reading takes the share by size as well."""
    disturbed: Mapping[Place, Set[str]] = field(default_factory=dict)
    """The tasks that were measured while other programs used the processors, by place."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        whole_s = self._whole_s(task, place)
        if region.size == graph.output_of(task).whole.size or math.isinf(whole_s):
            return whole_s
        return self.parts_s(TaskParts(graph, task), place)(task, region)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        size, launch_s = parts.whole.size, self.launches_s.get(place, 0.0)
        measured_s, predictor = self.pieces_s.get(place, {}), self.predictors.get(place)
        share_of = None if predictor is None else predictor.shares(parts)
        reading = self.readings.get(place)
        all_bytes = None if reading is None else parts.read_bytes(parts.whole)

        def part_s(task: Task, region: Region) -> float:
            whole_s = self._whole_s(task, place)
            if region.size == size or math.isinf(whole_s):
                return whole_s
            if (known_s := measured_s.get(Piece(task.name, region))) is not None:
                return known_s
            if share_of is not None and (share := share_of(region)) is not None:
                return whole_s * share
            least_s, share = min(launch_s, whole_s), region.size / max(1, size)
            if reading is None or not all_bytes:
                return least_s + (whole_s - least_s) * share
            read_bytes = parts.read_bytes(region)
            alone_s = min(whole_s - least_s, all_bytes * reading.alone_s)
            together_s = alone_s * reading.together_s / reading.alone_s
            read_share = share if read_bytes is None else read_bytes / all_bytes
            return least_s + (whole_s - least_s - alone_s) * share + together_s * read_share

        return part_s

    def _whole_s(self, task: Task, place: Place) -> float:
        try:
            return self.tasks_s[place][task.name]
        except KeyError:
            raise PlanError(
                f"task {task.name!r} was not measured on {place}; profile the model on it: "
                f"coexec profile MODEL --devices {place}"
            ) from None

    def launch_s(self, place: Place) -> float:
        return self.launches_s.get(place, 0.0)

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        tensor_s, byte_s = self.stitches_s.get(place, (0.0, 0.0))
        return tensor_s + size_bytes * byte_s + self._change_s(tensor, own_bytes, place, place)

    def join_s(self, size_bytes: int) -> float:
        return size_bytes * self.join_byte_s

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        return link.copy_s(size_bytes) + self._change_s(
            tensor, size_bytes, link.source, link.target
        )

    def _change_s(self, tensor: str, size_bytes: int, source: Place, target: Place) -> float:
        change = self.layout_changes.get((source, target))
        if change is None or tensor not in change.tensors:
            return 0.0
        return change.tensor_s + size_bytes * change.byte_s

    def total_s(self, place: Place) -> float:
        """Sum of the seconds of all tasks at ``place``, one by one."""
        return math.fsum(self.tasks_s[place].values())
