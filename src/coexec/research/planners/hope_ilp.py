"""HOPE's integer linear program on parts of the graph ("HOPE:LP").

Paper: Xia et al., "HOPE: a heterogeneity-oriented parallel execution engine for inference on
mobiles", High Technology Letters, 2022, section on HOPE:LP and Algorithm 1. Not in the paper: times
and locations of tensors are carried from part to part; copies keep the source, the target or no
device busy; and the look-ahead, without which a part ends early at the cost of later parts.

Parts follow each other without a barrier: a part begins on each device when the device is free, and
the locations of the tensors that it reads are given. The objective of a part is the latest end of
its tasks, where a share of the longest path from a task to the end of the graph is added to its
end. The solver starts each part from plain list scheduling, and the better of both plans is taken.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coexec.errors import UsageError
from coexec.planners.methods.listing import listed
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, best_of
from coexec.problem.timeline import Timeline, makespan_s
from coexec.research.planners.exact.constraints import Constraints
from coexec.research.planners.exact.formulation import Formulation, Valuation
from coexec.research.planners.exact.library import library
from coexec.research.planners.exact.rows import Rows

_FEW_TASKS = 400
"""Up to this number of tasks, a plan without look-ahead is tried, too (ten times slower)."""
_PART_NODES = 20
_PART_TICKS = 100
"""Number of ticks of a part's list schedule; the solver may stop one tick above its bound."""
_SUM_OF_ENDS = 1e-3
"""Weight of the sum of all ends in the objective of a part. Tasks that are not the last to end
should end early, too, because the next part begins when they end."""


def solve(
    problem: Problem,
    *,
    part_tasks: int = 12,
    eps: float = 0.2,
    look_ahead: float | None = None,
    max_nodes: int | None = None,
    time_limit_s: float = 60.0,
) -> Solution:
    """Cut the graph into small parts and plan one after the other, each with an integer program.

    Promises the optimum in the planners' model of time (`problem.timeline.Timeline`) if there is
    only one part, as with ``part_tasks=0``, and the solver finishes: status "optimal". Otherwise it
    only promises that the simulated plan is not slower than the best single device and not slower
    than plain list scheduling. Exponential in ``part_tasks``, linear in the number of parts. Equal
    inputs give equal plans, unless the clock stops a solver: only ``time_limit_s`` can make two
    runs differ.

    Args:
        part_tasks: the paper's NT; a part has fewer tasks. 0: the whole graph is one part.
        eps: a side of a cut has at most (1 + eps) times half of the tasks; eps grows by 0.1 until
            a cut exists.
        look_ahead: share of the path behind a task that counts, from 0 to 1. By default 1/4; up to
            400 tasks 0 is tried, too, and the shorter plan is kept. Without effect if there is only
            one part.
        max_nodes: maximum number of nodes of the solver's search tree, for each part; by default
            20, and no limit if there is only one part.
        time_limit_s: seconds of wall clock in all solvers together. The remaining parts are planned
            by list scheduling: status "time limit".

    Raises:
        UsageError: HiGHS is not installed or cannot be loaded, or an option has no meaning.
    """
    solver = _Solver(library("hope_ilp", "HiGHS", "highspy"), time_limit_s)
    _check(part_tasks, eps, look_ahead, max_nodes, time_limit_s)
    problem.refuse_shared("hope_ilp")
    parts = partition(problem, part_tasks, eps) if part_tasks else [list(problem.tasks)]
    if len(parts) == 1:
        solved = [_whole(problem, max_nodes, solver)]
    else:
        max_nodes = max_nodes or _PART_NODES
        shares = _shares(problem) if look_ahead is None else [look_ahead]
        solved = [_in_parts(problem, parts, share, max_nodes, solver) for share in shares]
    best = min(solved, key=lambda each: makespan_s(problem, *each.solution[:2]))
    if not best.proven:
        best = best._replace(solution=_no_worse(problem, best.solution))
    status = "optimal" if best.proven else "feasible" if solver.left_s > 0 else "time limit"
    chosen = {"look_ahead": best.look_ahead, "max_nodes": max_nodes}
    return best.solution._replace(status=status, options=chosen)


def _no_worse(problem: Problem, solution: Solution) -> Solution:
    """The shortest plan in the simulator: ``solution``, list scheduling or a single device."""
    ranks_s = problem.upward_rank_s
    timeline, sequence = listed(problem, problem.tasks, Timeline(problem), ranks_s)
    return best_of(problem, [solution, Solution(timeline.place, sequence)])


def _check(
    part_tasks: int,
    eps: float,
    look_ahead: float | None,
    max_nodes: int | None,
    time_limit_s: float,
) -> None:
    if part_tasks < 0 or part_tasks == 1:
        raise UsageError(
            f"part_tasks is {part_tasks}, but a part has fewer tasks than that and at least one; "
            f"use 0 for the whole graph as one part"
        )
    if not eps >= 0:
        raise UsageError(f"eps is {eps}, but no cut is closer to halves than 0")
    if look_ahead is not None and not 0 <= look_ahead <= 1:
        raise UsageError(f"look_ahead is {look_ahead}, but a share is from 0 to 1")
    if max_nodes is not None and max_nodes < 1:
        raise UsageError(f"max_nodes is {max_nodes}, but the solver looks at one at least")
    if not time_limit_s > 0:
        raise UsageError(f"time_limit_s is {time_limit_s}, but the solver needs more than 0")


class _Solved(NamedTuple):
    """A solution, the look-ahead that led to it, and whether it is proven to be optimal."""

    solution: Solution
    look_ahead: float | None
    proven: bool = False


def partition(problem: Problem, part_tasks: int, eps: float) -> list[list[int]]:
    """Parts of fewer than ``part_tasks`` tasks; no part reads from a later part.

    The paper's Algorithm 1: the depth of a task is the number of tasks on the longest path to it.
    Cut at the depth that the fewest tasks have, then cut both sides.
    """
    depths = [0] * len(problem.tasks)
    for task in problem.tasks:
        depths[task] = 1 + max((depths[p] for p in problem.predecessors[task]), default=0)
    return _halves(list(problem.tasks), depths, part_tasks, eps)


def _halves(
    tasks: list[int], depths: Sequence[int], part_tasks: int, eps: float
) -> list[list[int]]:
    if len(tasks) < part_tasks:
        return [tasks]
    counts = Counter(depths[task] for task in tasks)
    if len(counts) == 1:  # no task depends on another one, so any halves will do
        middle = len(tasks) // 2
        sides = tasks[:middle], tasks[middle:]
    else:
        depth = _cut(counts, eps)
        sides = [t for t in tasks if depths[t] <= depth], [t for t in tasks if depths[t] > depth]
    return [part for side in sides for part in _halves(side, depths, part_tasks, eps)]


def _cut(counts: Mapping[int, int], eps: float) -> int:
    """The last depth of the first side.

    Args:
        counts: number of tasks by depth.
    """
    total = sum(counts.values())
    while True:
        below, options = 0, []
        for depth in sorted(counts)[:-1]:
            below += counts[depth]
            larger = max(below, total - below)
            if larger <= (1 + eps) * total / 2:
                options.append((counts[depth], larger, depth))
        if options:
            return min(options)[-1]
        eps += 0.1


def _whole(problem: Problem, max_nodes: int | None, solver: "_Solver") -> _Solved:
    """The plan of the graph as one part; the list schedule if the solver has no time left."""
    ranks_s, tails_s = problem.upward_rank_s, problem.bounds.chain.tails_s
    timeline, sequence = listed(problem, problem.tasks, Timeline(problem), ranks_s)
    formulation = _formulate(problem, problem.tasks, Timeline(problem), tails_s, timeline)
    valuation = formulation.solution(timeline.place, sequence)
    formulation.within(valuation.moments[formulation.end_of_all])
    solution, proven = solver.solve(formulation, valuation, 0.0, max_nodes)
    assignment, sequence = formulation.read(solution)
    return _Solved(Solution(assignment, sequence), None, proven)


def _shares(problem: Problem) -> list[float]:
    return [0.25, 0.0] if len(problem.tasks) <= _FEW_TASKS else [0.25]


def _in_parts(
    problem: Problem, parts: Iterable[list[int]], share: float, max_nodes: int, solver: "_Solver"
) -> _Solved:
    """The plan of one part after the other.

    Args:
        share: the share of the path behind a task that is added to its end in the objective.
    """
    timeline, sequence = Timeline(problem), list[int]()
    follows_s = [share * s for s in _follows_s(problem)]
    for part in parts:
        timeline, ordered = _part(problem, part, timeline, follows_s, max_nodes, solver)
        sequence += ordered
    return _Solved(Solution(timeline.place, sequence), share)


def _follows_s(problem: Problem) -> list[float]:
    """By task, its upward rank minus its own mean time."""
    ranks_behind_s = []
    for rank_s, row in zip(problem.upward_rank_s, problem.latency_s, strict=True):
        runs_s = [s for s in row if s < math.inf]
        ranks_behind_s.append(max(0.0, rank_s - sum(runs_s) / len(runs_s)))
    return ranks_behind_s


def _part(
    problem: Problem,
    part: list[int],
    before: Timeline,
    follows_s: Sequence[float],
    max_nodes: int,
    solver: "_Solver",
) -> tuple[Timeline, list[int]]:
    """The better plan for ``part`` after ``before``: the solver's plan or the list schedule."""
    first, sequence = listed(problem, part, before, problem.upward_rank_s)
    if solver.left_s <= 0:
        return first, sequence
    formulation = _formulate(problem, part, before, follows_s, first)
    valuation = formulation.solution(first.place, sequence)
    formulation.within(valuation.moments[formulation.end_of_all])
    solution, _ = solver.solve(formulation, valuation, _SUM_OF_ENDS, max_nodes)
    assignment, ordered = formulation.read(solution)
    second = before.copy()
    for task in ordered:
        second.run(task, assignment[task])

    def objective_s(timeline: Timeline) -> float:
        ends_s = [timeline.end_s[task] for task in part]
        latest_s = max(timeline.end_s[task] + follows_s[task] for task in part)
        return latest_s + _SUM_OF_ENDS * sum(ends_s)

    better = objective_s(second) < objective_s(first)
    return (second, ordered) if better else (first, sequence)


def _formulate(
    problem: Problem,
    tasks: Sequence[int],
    before: Timeline,
    tails_s: Sequence[float],
    listed: Timeline,
) -> Formulation:
    """The formulation of ``tasks`` after ``before``.

    Args:
        listed: a list schedule of these tasks; a tick is a fixed share of its time.
    """
    tick_s = max(1e-12, listed.makespan_s - min(before.free_s)) / _PART_TICKS
    formulation = Formulation(problem, tasks, before, Constraints(tick_s), tails_s)
    formulation.one_at_a_time()
    return formulation


class _Solver:
    """HiGHS, on one thread, and the seconds that it may still use."""

    def __init__(self, highspy: Any, left_s: float) -> None:
        self._highspy = highspy
        self.left_s = left_s

    def solve(
        self,
        formulation: Formulation,
        incumbent: Valuation,
        weight: float,
        max_nodes: int | None,
    ) -> tuple[Valuation, bool]:
        """The best solution found, at worst ``incumbent``, and whether it is proven to be optimal.

        The objective is the end of all plus ``weight`` times the sum of the ends of tasks.
        """
        highs = _silent(self._highspy)
        options = {
            "threads": 1,
            "time_limit": self.left_s,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": 1.0 if weight else 1e-6,
        }
        if max_nodes is not None:
            options["mip_max_nodes"] = max_nodes
        for name, value in options.items():
            highs.setOptionValue(name, value)
        highs.passModel(self._program(formulation, weight))
        start = self._highspy.HighsSolution()
        start.col_value = [float(x) for x in (*incumbent.flags[1:], *incumbent.moments)]
        highs.setSolution(start)
        highs.run()
        self.left_s -= highs.getRunTime()
        values = list(highs.getSolution().col_value)
        if highs.getInfo().primal_solution_status != self._highspy.kSolutionStatusFeasible:
            return incumbent, False
        flags = formulation.constraints.flags
        proven = highs.getModelStatus() == self._highspy.HighsModelStatus.kOptimal
        return Valuation([False, *(x > 0.5 for x in values[:flags])], values[flags:]), proven

    def _program(self, formulation: Formulation, weight: float) -> Any:
        constraints = formulation.constraints
        rows = Rows(constraints)
        flags, moments = constraints.flags, constraints.moments
        program = self._highspy.HighsLp()
        program.num_col_, program.num_row_ = flags + len(moments), len(rows.lower)
        costs = np.zeros(program.num_col_)
        costs[[rows.column(moment) for moment in formulation.end.values()]] = weight
        costs[rows.column(formulation.end_of_all)] = 1.0
        program.col_cost_ = costs
        earliest, latest = zip(*moments, strict=True)
        program.col_lower_ = np.array([1.0, *[0.0] * (flags - 1), *earliest])  # `TRUE` is first
        program.col_upper_ = np.array([*[1.0] * flags, *latest])
        program.row_lower_ = np.array(rows.lower)
        program.row_upper_ = np.full(len(rows.lower), np.inf)
        matrix = program.a_matrix_
        matrix.format_ = self._highspy.MatrixFormat.kRowwise
        matrix.start_, matrix.index_ = np.array(rows.starts), np.array(rows.columns)
        matrix.value_ = np.array(rows.factors)
        kinds = self._highspy.HighsVarType
        program.integrality_ = [kinds.kInteger] * flags + [kinds.kContinuous] * len(moments)
        return program


def _silent(highspy: Any) -> Any:
    """A solver that prints nothing.

    From version 1.16 on, HiGHS prints a banner when callbacks are set up. The constructor does this
    before any option can be set, so the output is switched off in an overridden method.
    """

    class Silent(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return Silent()
