"""Device programs as rows of a JSON document."""

from collections.abc import Iterable
from typing import Any

from coexec.plan.program import Copy, DeviceProgram, Run, Signal, Step, Wait
from coexec.plan.schedule import Schedule

__all__ = ["program_rows"]


def program_rows(
    programs: Iterable[DeviceProgram], schedule: Schedule
) -> dict[str, list[dict[str, Any]]]:
    """By device, its steps in order. A row has the kind of the step, and the number of the segment
    that is awaited, computed or signalled, or from which a tensor is copied."""
    return {p.device: [_row(step, schedule) for step in p.steps] for p in programs}


def _row(step: Step, schedule: Schedule) -> dict[str, Any]:
    match step:
        case Wait(index):
            return {"step": "wait", "segment": index}
        case Copy(number):
            transfer = schedule.transfers[number]
            return {
                "step": "copy",
                "segment": transfer.source,
                "tensor": transfer.tensor,
                "start": transfer.region.start,
                "stop": transfer.region.stop,
                "size_bytes": transfer.size_bytes,
            }
        case Run(index):
            segment = schedule.segments[index]
            tasks = [piece.task for piece in segment.pieces]
            return {"step": "run", "segment": index, "engine": segment.engine, "tasks": tasks}
        case Signal(index):
            return {"step": "signal", "segment": index}
