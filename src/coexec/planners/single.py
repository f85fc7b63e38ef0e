"""The whole model on one device."""

import math

from coexec.errors import DeviceError, InfeasibleError
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, alone_s


def solve(problem: Problem, *, device: str | None = None) -> Solution:
    """Run the whole model on one device: the baseline of co-execution.

    Promises the fastest single device. On it, the whole model is one segment that is launched once.
    O(|V| |D|). No paper.

    Args:
        device: the name of the device, with or without its engine; by default the fastest one.

    Raises:
        DeviceError: the system has no such device.
        InfeasibleError: the device, or each of them, cannot run some task.
    """
    system = problem.system
    candidates = [
        number
        for number, place in enumerate(system.places)
        if device in (None, place.device, str(place))
    ]
    if not candidates:
        raise DeviceError(f"the system has no device {device!r}, only {', '.join(system.names)}")

    def name(number: int) -> str:
        place = system.places[number]
        return str(place) if problem.shares_processors else place.device

    refused = {number: _refused(problem, number) for number in candidates}
    able = [number for number in candidates if refused[number] is None]
    if not able:
        reasons = "; ".join(
            f"{name(number)} does not run {task}" for number, task in refused.items()
        )
        raise InfeasibleError(
            f"no single device runs all of {problem.graph.name!r}: {reasons}; use a planner that "
            f"combines devices, such as hope_greedy"
        )
    best = min(able, key=lambda number: alone_s(problem, number))
    return Solution([best] * len(problem.tasks), problem.tasks, options={"device": name(best)})


def _refused(problem: Problem, device: int) -> str | None:
    """The first task that a device does not run, for messages; None if it runs all."""
    for task in problem.tasks:
        if problem.latency_s[task][device] == math.inf:
            return f"{problem.graph.tasks[task].name!r} ({problem.graph.tasks[task].kind})"
    return None
