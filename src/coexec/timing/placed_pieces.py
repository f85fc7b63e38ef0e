"""The pieces of a plan by task, with their segments and predicted seconds."""

from collections.abc import Mapping
from dataclasses import dataclass

from coexec.costs.base import CostModel
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.plan.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """A piece of a task at its place."""

    region: Region
    place: Place
    segment: int
    predicted_s: float
    """Seconds of this piece alone, with a launch of its own."""


def placed_pieces(schedule: Schedule, cost: CostModel) -> Mapping[str, tuple[PlacedPiece, ...]]:
    """The pieces of each task, by its name, in the order of their regions."""
    graph = schedule.graph
    pieces: dict[str, list[PlacedPiece]] = {task.name: [] for task in graph.tasks}
    for segment in schedule.segments:
        for name, region in segment.pieces:
            seconds = cost.piece_s(graph, graph.task[name], region, segment.place)
            pieces[name].append(PlacedPiece(region, segment.place, segment.index, seconds))
    return {name: tuple(sorted(own, key=lambda p: p.region)) for name, own in pieces.items()}
