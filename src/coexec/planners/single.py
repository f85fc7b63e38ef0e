"""The whole model on one device."""

import math

from coexec.errors import DeviceError, InfeasibleError
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, alone_s

__all__ = ["solve"]


def solve(problem: Problem, *, device: str | None = None) -> Solution:
    """Run the whole model on one device: the baseline of co-execution.

    Promises the fastest single device. On it, the whole model is one segment that is launched once.
    O(|V| |D|). No paper.

    Args:
        device: the name of the device; by default the fastest one.

    Raises:
        DeviceError: the system has no such device.
        InfeasibleError: the device, or each of them, cannot run some task.
    """
    system = problem.system
    if device is not None and device not in system.device:
        raise DeviceError(f"the system has no device {device!r}, only {', '.join(system.names)}")
    candidates = system.names if device is None else (device,)
    refused = {name: _refused(problem, name) for name in candidates}
    able = [name for name in candidates if refused[name] is None]
    if not able:
        reasons = "; ".join(f"{name} does not run {task}" for name, task in refused.items())
        raise InfeasibleError(
            f"no single device runs all of {problem.graph.name!r}: {reasons}; use a planner that "
            f"combines devices, such as hope_greedy"
        )
    best = min(able, key=lambda name: alone_s(problem, system.names.index(name)))
    assignment = [system.names.index(best)] * len(problem.tasks)
    return Solution(assignment, problem.tasks, options={"device": best})


def _refused(problem: Problem, name: str) -> str | None:
    """The first task that a device does not run, for messages; None if it runs all."""
    device = problem.system.names.index(name)
    for task in problem.tasks:
        if problem.latency_s[task][device] == math.inf:
            return f"{problem.graph.tasks[task].name!r} ({problem.graph.tasks[task].kind})"
    return None
