"""Device programs on the virtual clock, device by device."""

import heapq
from collections.abc import Iterator, Sequence

from coexec.costs.base import CostModel
from coexec.hardware.hardware import System
from coexec.plan.program import Copy, DeviceProgram, Run, Signal, Wait, verify_programs
from coexec.plan.schedule import Schedule
from coexec.timing.simulate import VirtualClock
from coexec.timing.trace import Trace


def simulate_programs(
    programs: Sequence[DeviceProgram],
    schedule: Schedule,
    cost: CostModel,
    system: System,
    requests: int = 1,
) -> Trace:
    """Trace of ``requests`` inferences that all arrive at second 0, in virtual seconds.

    Each device carries out its program once for each request. An event counts as signalled at the
    end of its segment. So programs of `coexec.plan.program.device_programs` have the trace of
    `coexec.timing.simulate.simulate`, to the last digit.

    Raises:
        PlanError: the programs do not carry out the schedule.
    """
    verify_programs(programs, schedule)
    clock = VirtualClock(schedule, cost, system, requests)
    ready = [_steps(program, requests, len(schedule.segments)) for program in programs]
    waiting: dict[int, list[_Steps]] = {}
    signalled: set[int] = set()
    running: list[tuple[float, int, _Steps]] = []
    while ready or running:
        if not ready:
            ready.append(heapq.heappop(running)[2])
        starts: list[tuple[int, _Steps]] = []
        while ready:
            steps = ready.pop()
            for step, node in steps:
                if isinstance(step, Run):
                    starts.append((node, steps))
                    break
                if isinstance(step, Signal):
                    signalled.add(node)
                    ready += waiting.pop(node, ())
                elif node not in signalled:
                    waiting.setdefault(node, []).append(steps)
                    break
        # Results of segments that start at once may share a link: it carries them in this order.
        for node, steps in sorted(starts, key=lambda start: start[0]):
            heapq.heappush(running, (clock.run(node), node, steps))
    return clock.trace(requests)


_Steps = Iterator[tuple[Wait | Run | Signal, int]]
"""The further steps of a device, each with the node whose run or event it is."""


def _steps(program: DeviceProgram, requests: int, segments: int) -> _Steps:
    """The steps of all requests. Copies are left out: the clock makes them when it runs their
    reader."""
    for request in range(requests):
        for step in program.steps:
            if not isinstance(step, Copy):
                yield step, request * segments + step.segment
