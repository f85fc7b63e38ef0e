"""MOSAIC: the network as a line of layers that run one after the other."""

import math

from coexec.problem.problem import Problem
from coexec.problem.solution import Solution


def solve(problem: Problem) -> Solution:
    """The best cut of the topological order into runs on one device each; a baseline of HOPE.

    Dynamic programming over (layer, device): the cost of a layer is its own time and, if the device
    changes, the transfer of every tensor that it reads. These tensors are assumed to be on the
    device of the previous layer, as on a line. Promises the least sum of these costs, not the least
    makespan: in this model devices never compute at the same time, so parallel branches gain
    nothing. The executor may still overlap tasks that do not depend on each other. O(|V| |D|^2).

    Paper: Han et al., "MOSAIC: Heterogeneity-, Communication-, and Constraint-Aware Model Slicing
    and Execution for Accurate and Efficient Inference", PACT 2019; rebuilt after HOPE's summary.
    """
    assignment, _ = line(problem)
    return Solution(assignment, problem.tasks)


def line(problem: Problem) -> tuple[list[int], float]:
    """The device of each task, and the seconds of all tasks and transfers one after the other."""
    best = [[math.inf] * len(problem.devices) for _ in problem.tasks]
    came = [[0] * len(problem.devices) for _ in problem.tasks]
    for task in problem.tasks:
        for device in problem.devices:
            own_s = problem.latency_s[task][device]
            if task == 0:
                best[task][device] = own_s
                continue
            options = [
                best[task - 1][before] + _moving_s(problem, task, before, device)
                for before in problem.devices
            ]
            came[task][device] = before = min(problem.devices, key=options.__getitem__)
            best[task][device] = options[before] + own_s
    if not best:
        return [], 0.0
    device = last = min(problem.devices, key=best[-1].__getitem__)
    assignment = [0] * len(best)
    for task in reversed(problem.tasks):
        assignment[task] = device
        device = came[task][device]
    return assignment, best[-1][last]


def _moving_s(problem: Problem, task: int, source: int, target: int) -> float:
    """Seconds to move all inputs of ``task`` from one device to another."""
    if source == target:
        return 0.0
    tensors = problem.reads[task]
    latency_s = problem.links[source][target].sync_latency_s if tensors else 0.0
    return sum((problem.transfer_s[t][source][target] for t in tensors), latency_s)
