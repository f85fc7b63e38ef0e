"""The best pipeline of a tiny graph on a few machines, by exhaustive search."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from coexec.errors import PlanError
from coexec.pipeline.planners.methods.building import notes_of, stages_of_groups
from coexec.pipeline.planners.methods.network import TimeModel
from coexec.pipeline.planners.methods.pipeline import stages_on_machines
from coexec.pipeline.planners.methods.problem import Group, PipelineProblem, PipelineSolution
from coexec.pipeline.planners.methods.rows import RowGraph

Counts = tuple[int, ...]
"""The number of machines of each capacity, the highest capacity first."""


def solve(
    problem: PipelineProblem, *, model: TimeModel = "overlap", max_fronts: int = 2000
) -> PipelineSolution:
    """The pipeline of least period, of all pipelines in which each machine serves one stage at
    most.

    Stages are any sets of tasks in topological order, not only chains of pieces. All choices of
    machines are tried. As with `pico`, the strongest machine of a stage leads it, and rows are
    balanced so that all machines finish together. This is the oracle with which `pico` is compared
    (the paper's BFS). O(F^2 3^D) for F sets that stages can end with; machines of the same capacity
    are interchangeable.

    Raises:
        PlanError: there are more than ``max_fronts`` such sets.
    """
    pieces = [1 << task for task in range(len(problem.rows.macs))]
    quick = stages_on_machines(problem, pieces, model, float("inf"), "stages")
    upper_s = problem.period_s(quick, model)
    best = _best_of_all(problem, model, max_fronts, upper_s)
    period_s, groups = (upper_s, quick) if best is None else best
    stages = stages_of_groups(problem, groups)
    return PipelineSolution(stages, period_s, "optimal", period_s, notes=notes_of(problem))


class _Best(NamedTuple):
    """A pipeline up to a front, on some machines."""

    period_s: float
    shared_s: float
    before: "tuple[_Best, Group] | None"


def _fronts_of(rows: RowGraph, limit: int) -> list[int]:
    """All sets of tasks that contain the predecessors of their tasks, by rising size.

    Raises:
        PlanError: there are more than ``limit`` such sets.
    """
    seen, stack = {0}, [0]
    while stack:
        front = stack.pop()
        for task, before in enumerate(rows.before):
            after = front | 1 << task
            if not front >> task & 1 and not before & ~front and after not in seen:
                seen.add(after)
                stack.append(after)
        if len(seen) > limit:
            raise PlanError(
                f"{rows.graph.name!r} has more than {limit} sets of tasks that a stage could end "
                f"with; use pico, or raise max_fronts"
            )
    return sorted(seen, key=lambda front: (front.bit_count(), front))


def _best_of_all(
    problem: PipelineProblem, model: TimeModel, max_fronts: int, upper_s: float
) -> tuple[float, list[Group]] | None:
    """The least period of all pipelines, and the groups of that pipeline; None if no period is at
    most ``upper_s``.

    A dynamic program over (tasks done, machines used of each capacity). Stages that are slower than
    ``upper_s`` even without halos and messages are left out.
    """
    fronts = _fronts_of(problem.rows, max_fronts)
    classes = _classes(problem)
    sizes = tuple(len(names) for names in classes)
    states: dict[tuple[int, Counts], list[_Best]] = {
        (0, (0,) * len(sizes)): [_Best(0.0, 0.0, None)]
    }
    used_at: dict[int, set[Counts]] = {front: set() for front in fronts}
    used_at[0].add((0,) * len(sizes))
    for front in fronts:
        for after in fronts:
            if after == front or front & ~after:
                continue
            for chosen in _choices(sizes):
                _extend(problem, model, upper_s, classes, states, used_at, front, after, chosen)
    pipelines = [
        pipeline for used in used_at[problem.all] for pipeline in states[problem.all, used]
    ]
    if not pipelines:
        return None
    best = min(pipelines, key=lambda way: (max(way.period_s, way.shared_s), way.shared_s))
    groups: list[Group] = []
    period_s = max(best.period_s, best.shared_s)
    while best.before is not None:
        best, group = best.before
        groups.insert(0, group)
    return period_s, groups


def _extend(
    problem: PipelineProblem,
    model: TimeModel,
    upper_s: float,
    classes: Sequence[Sequence[str]],
    best_ways: dict[tuple[int, Counts], list[_Best]],
    used_at: Mapping[int, set[Counts]],
    front: int,
    after: int,
    chosen: Counts,
) -> None:
    """Add one stage to all pipelines that end at ``front`` and leave enough machines free."""
    sizes = [len(names) for names in classes]
    free = [
        u
        for u in used_at[front]
        if all(a + b <= n for a, b, n in zip(u, chosen, sizes, strict=True))
    ]
    if not free:
        return
    body = problem.bodies.of(after & ~front)
    rate = sum(n * problem.rate[names[0]] for n, names in zip(chosen, classes, strict=True))
    if (body.macs + body.tail_macs) / rate > upper_s:
        return
    # Machines of one capacity are interchangeable, so the time of the stage is computed for the
    # first machines of each capacity.
    names = [name for n, alike in zip(chosen, classes, strict=True) for name in alike[:n]]
    group = Group(body.tasks, tuple(names))
    time = problem.wires.stage_time(problem.staged(front, group).load, model)
    if time.period_s > upper_s:
        return
    for used in free:
        key = after, tuple(a + b for a, b in zip(used, chosen, strict=True))
        exact = [alike[a : a + n] for a, n, alike in zip(used, chosen, classes, strict=True)]
        own = Group(body.tasks, tuple(name for part in exact for name in part))
        for pipeline in best_ways[front, used]:
            period_s = max(pipeline.period_s, time.period_s)
            shared_s = pipeline.shared_s + time.shared_s
            kept = best_ways.setdefault(key, [])
            if shared_s > upper_s or any(
                w.period_s <= period_s and w.shared_s <= shared_s for w in kept
            ):
                continue
            kept[:] = [w for w in kept if w.period_s < period_s or w.shared_s < shared_s]
            kept.append(_Best(period_s, shared_s, (pipeline, own)))
            used_at[after].add(key[1])


def _classes(problem: PipelineProblem) -> list[list[str]]:
    """Groups of machines of equal capacity, by falling capacity."""
    machines_of_rate: dict[float, list[str]] = {}
    for name in problem.machines:
        machines_of_rate.setdefault(problem.rate[name], []).append(name)
    return list(machines_of_rate.values())


def _choices(sizes: Counts) -> Iterable[Counts]:
    """All selections of at least one machine."""
    return (chosen for chosen in product(*(range(n + 1) for n in sizes)) if any(chosen))
