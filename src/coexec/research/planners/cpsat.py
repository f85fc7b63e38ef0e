"""A plan of the whole graph at once, with a lower bound, by OR-Tools CP-SAT.

The model has a decision and an optional interval for each task and device, a no-overlap constraint
for each device, and literals for the tensors that move. The tasks of a segment pay for one launch.
Because the model leaves the number of segments open, the solver's plan is then improved by
simulated annealing with the simulator's makespan.

Method: constraint programming with optional intervals; Laborie et al., "IBM ILOG CP optimizer for
scheduling", Constraints, 2018, for the modelling; Perron and Furnon, OR-Tools, for the solver.
"""

import math
from typing import Any

from coexec.errors import UsageError
from coexec.planners import search_starts
from coexec.planners.methods.annealing import annealed
from coexec.problem.fusion import fused
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s
from coexec.problem.timeline import Timeline, makespan_s
from coexec.research.planners.exact.constraints import TRUE, Constraints, Literal, Sum
from coexec.research.planners.exact.formulation import Formulation, Valuation
from coexec.research.planners.exact.library import library

_TICKS = 1e8
"""CP-SAT works with integers; the longest plan takes from this many to ten times as many ticks."""
_STEPS = (1_000, 60_000_000_000)
"""Annealing steps: the number for each task, and the maximum for a graph of one task. The maximum
is divided by the square of the number of tasks, because a step takes longer in a larger graph."""


def solve(
    problem: Problem,
    *,
    limit: float = 12.0,
    time_limit_s: float = 30.0,
    steps: int | None = None,
    workers: int = 2,
    seed: int = 0,
) -> Solution:
    """Search for the best plan of the whole graph, and prove how good it is.

    It starts from the shortest plan of the heuristics (hope_greedy, heft, dmdar, mosaic, plain list
    scheduling), and the result is never longer than that plan in the simulator. Promises a lower
    bound for all plans of unsplit tasks, in the planners' model of time and in the simulator.
    Status "optimal": the simulated makespan meets the bound (within the rounding to the solver's
    integers, at worst 1e-4 of it). "feasible": the work limit came first. "time limit": the wall
    clock came first. Exponential at worst.

    Equal inputs give equal plans, also with several workers, unless the clock stops the search:
    only ``time_limit_s`` can make two runs differ.

    Args:
        limit: work for the search in the solver's own deterministic units; on current machines a
            unit takes from one to five seconds of a core.
        time_limit_s: seconds of wall clock after which the solver has to end. Building the model
            and annealing are not counted.
        steps: annealing steps at the end; by default as many as take about half a minute for
            hundreds of tasks.
        workers: strategies that search in turns and share their results.
        seed: seed of the random choices of solver and annealing.

    Raises:
        UsageError: OR-Tools is not installed or cannot be loaded, or an option is not positive.
    """
    problem.refuse_shared("cpsat")
    cp_model = library("cpsat", "OR-Tools", "ortools.sat.python.cp_model")
    steps = _default_steps(len(problem.tasks)) if steps is None else steps
    _check(limit=limit, time_limit_s=time_limit_s, steps=steps, workers=workers)
    begun = search_starts(problem)
    formulation = _formulate(problem, begun[0])
    model = _CpSatModel(cp_model, formulation)
    model.start_from(formulation.solution(*begun[0][:2]))
    solver = _solver(cp_model, limit, time_limit_s, workers, seed)
    solutions, bound_s = model.solve(solver)
    begun += [fused(problem, solution) for solution in solutions]
    # A plan meets the bound if the difference is not larger than the error of rounding to ticks.
    enough_s = bound_s + 2 * formulation.constraints.rounding() * formulation.constraints.tick_s
    best = min(begun, key=lambda solution: simulated_s(problem, solution))
    best = annealed(problem, best, steps, seed=seed, bound_s=enough_s)
    status = "time limit" if solver.wall_time >= time_limit_s else "feasible"
    if simulated_s(problem, best) <= enough_s:
        status = "optimal"
    bound_s = max(problem.bound_s, bound_s)
    return best._replace(status=status, bound_s=bound_s, options={"steps": steps})


def _default_steps(tasks: int) -> int:
    count = max(1, tasks)
    return max(1, min(_STEPS[0] * count, _STEPS[1] // count**2))


def _check(**options: float) -> None:
    for name, value in options.items():
        if not value > 0:
            raise UsageError(f"{name} is {value}, but planner cpsat needs more than 0")


def _solver(cp_model: Any, limit: float, time_limit_s: float, workers: int, seed: int) -> Any:
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = limit
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = workers
    solver.parameters.interleave_search = True  # workers in turns: equal results on any machine
    solver.parameters.random_seed = seed
    # The solver would leave SIGINT without a handler: Ctrl-C would kill the process from then on.
    solver.parameters.catch_sigint_signal = False
    return solver


def _formulate(problem: Problem, start: Solution) -> Formulation:
    """The problem in whole ticks; a solution takes no longer than ``start``."""
    tick_s = 10.0 ** math.floor(math.log10(max(1e-9, makespan_s(problem, *start[:2])) / _TICKS))
    formulation = Formulation(
        problem,
        problem.tasks,
        Timeline(problem),
        Constraints(tick_s, whole=True),
        problem.bounds.chain.tails_s,
        fused=True,
    )
    formulation.keep_order()
    valuation = formulation.solution(*start[:2])
    formulation.within(valuation.moments[formulation.end_of_all])
    return formulation


class _CpSatModel:
    """A formulation as a model of CP-SAT."""

    def __init__(self, cp_model: Any, formulation: Formulation) -> None:
        self._formulation, self._constraints = formulation, formulation.constraints
        self._cp_model = cp_model
        self._model = cp_model.CpModel()
        self._flags = [self._model.new_bool_var("") for _ in range(self._constraints.flags + 1)]
        self._moments = [self._model.new_int_var(a, b, "") for a, b in self._constraints.moments]
        self._one_task_at_a_time()
        self._clauses()
        self._rules()
        self._model.minimize(self._moments[formulation.end_of_all])

    def start_from(self, solution: Valuation) -> None:
        """Start the search from this solution."""
        for flag, value in zip(self._flags[1:], solution.flags[1:], strict=True):
            self._model.add_hint(flag, value)
        for moment, tick in zip(self._moments, solution.moments, strict=True):
            self._model.add_hint(moment, tick)

    def solve(self, solver: Any) -> tuple[list[Solution], float]:
        """The best solution, if there is one, and a lower bound in seconds; rounding to ticks is
        already subtracted."""
        status = solver.solve(self._model)
        if status not in (self._cp_model.OPTIMAL, self._cp_model.FEASIBLE):
            # This includes an error of the solver: it may reject a model that has a solution.
            return [], 0.0
        flags = [bool(solver.value(flag)) for flag in self._flags]
        solution = Valuation(flags, [solver.value(moment) for moment in self._moments])
        ticks = solver.best_objective_bound - self._constraints.rounding()
        return [Solution(*self._formulation.read(solution))], ticks * self._constraints.tick_s

    def _one_task_at_a_time(self) -> None:
        formulation = self._formulation
        for device in formulation.problem.devices:
            able = [task for task in formulation.tasks if device in formulation.able(task)]
            self._model.add_no_overlap([self._interval(task, device) for task in able])

    def _interval(self, task: int, device: int) -> Any:
        """The interval in which ``task`` and its copies keep ``device`` busy."""
        formulation = self._formulation
        start, end = self._sum(formulation.begins(task)), self._moments[formulation.end[task]]
        here = self._literal(formulation.on(task, device))
        if formulation.on(task, device) != TRUE:
            # CP-SAT 9.15 applies the bounds of a shared start variable even if the interval is
            # absent, and may find no solution or too high a bound. So each interval has its own.
            begins, start = start, self._model.new_int_var(0, formulation.horizon, "")
            self._model.add(start == begins).only_enforce_if(here)
        size: Any
        size, _, copies = occupied = self._constraints.in_ticks(formulation.occupies(task, device))
        if copies or size != self._constraints.ticks(formulation.run_s[task][device]):
            end = self._model.new_int_var(0, formulation.horizon, "")
        if copies:
            longest = size + sum(ticks for ticks, _ in copies)
            size = self._model.new_int_var(size, longest, "")
            self._model.add(size == self._sum(occupied)).only_enforce_if(here)
        return self._model.new_optional_interval_var(start, size, end, here, "")

    def _clauses(self) -> None:
        self._model.add_bool_or([self._literal(TRUE)])
        for clause in self._constraints.clauses:
            self._model.add_bool_or([self._literal(literal) for literal in clause])

    def _rules(self) -> None:
        for rule in self._constraints.rules:
            posted = self._model.add(self._sum(rule.late) >= self._sum(rule.early))
            posted.only_enforce_if([self._literal(literal) for literal in rule.literals])

    def _literal(self, literal: Literal) -> Any:
        flag = self._flags[abs(literal)]
        return flag if literal > 0 else ~flag

    def _sum(self, terms: Sum) -> Any:
        total: Any = terms.constant
        if terms.moment is not None:
            total = total + self._moments[terms.moment]
        for ticks, literal in terms.flags:
            total = total + ticks * self._literal(literal)
        return total
