"""Planners: functions from graph, costs and system to a plan.

They are pure: equal input and equal options give equal plans.

    from coexec.planners import PLANNERS
    plan = PLANNERS["hope_greedy"](graph, cost, system, top_k=4)

To add a planner, write one file that has the planner's name and a function ``solve``, and add one
row here. Other planners are entry points of the group ``coexec.planners``, whose name is the
planner's and whose object is the function: those of `coexec.research.planners`, and those of other
packages. Options are keyword-only, have defaults, and have their unit in the name.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from coexec.costs.base import CostModel
from coexec.errors import CoexecError, PlanError, UsageError, first_line, nearest
from coexec.plan.plan import Plan, Provenance, verify_plan
from coexec.planners import (
    anneal,
    codl,
    dmdar,
    heft,
    hope_greedy,
    mosaic,
    single,
)
from coexec.planners.methods.listing import listed
from coexec.problem.fusion import fused
from coexec.problem.planner import FOREIGN, Planner, PlannerKind
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s, written
from coexec.problem.timeline import Timeline, makespan_s

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["PLANNERS", "MachinePlanner", "Planner", "Planners", "find_planner", "search_starts"]

_GROUP = "coexec.planners"


MachinePlanner: TypeAlias = Planner[CostModel, Problem, Solution, Plan]

_CAUTION = (1.0, 1.5, 2.0, 2.5)
"""Factors by which list scheduling multiplies the latency of links, for plans to start from."""


def build_plan(
    problem: Problem, solution: Solution, planner: str, options: Mapping[str, Any]
) -> Plan:
    """The plan of a solution. If it divides no task, tasks are fused by `problem.fusion.fused`.

    The bound is the problem's, unless the planner has a better one. The predicted makespan is from
    the planners' model of time, in which every task is a launch of its own. A solution that divides
    tasks has its predicted makespan from the simulator, and no bound: bounds for whole tasks do not
    hold for it.
    """
    used, whole = dict(options), solution.undivided(problem)
    if whole is None:
        seconds = simulated_s(problem, solution)
        return written(problem, solution, Provenance(planner, used, solution.status, seconds))
    predicted_s = makespan_s(problem, whole.assignment, whole.sequence)
    bound_s = problem.bound_s if whole.bound_s is None else whole.bound_s
    provenance = Provenance(planner, used, whole.status, predicted_s, bound_s)
    return written(problem, fused(problem, whole), provenance)


_MACHINE = PlannerKind(Problem, Solution, build_plan, verify_plan)


def search_starts(problem: Problem) -> list[Solution]:
    """Plans that searches start from, with fused launches, the shortest in the simulator first.

    They are those of the fast planners, so a search is never worse than these, whatever its limits
    are. A plan for a single device is not needed, as hope_greedy returns no slower one. Further
    plans come from list scheduling with link latencies that are larger than the real ones, because
    list scheduling does not count the launches that a transfer causes at both ends, nor how often
    two devices wait for each other.
    """
    solutions = [solve(problem) for solve in (dmdar.solve, hope_greedy.solve, mosaic.solve)]
    for caution in _CAUTION:
        system = replace(
            problem.system,
            links=tuple(
                replace(x, sync_latency_s=caution * x.sync_latency_s) for x in problem.system.links
            ),
        )
        cautious = Problem(problem.graph, problem.cost, system)
        ranks_s = cautious.upward_rank_s
        timeline, sequence = listed(cautious, cautious.tasks, Timeline(cautious), ranks_s)
        solutions += [Solution(timeline.place, sequence), heft.solve(cautious)]
    plain = (Solution(one.assignment, one.sequence) for one in solutions)
    return sorted((fused(problem, one) for one in plain), key=lambda one: simulated_s(problem, one))


@functools.wraps(anneal.solve)  # keeps its options
def _anneal(problem: Problem, **options: Any) -> Solution:
    return anneal.solve(problem, search_starts, **options)


_SOLVE: Mapping[str, Callable[..., Solution]] = {
    "anneal": _anneal,
    "codl": codl.solve,
    "dmdar": dmdar.solve,
    "heft": heft.solve,
    "hope_greedy": hope_greedy.solve,
    "mosaic": mosaic.solve,
    "single": single.solve,
}


class Planners(Mapping[str, MachinePlanner]):
    """The planners here and those that are entry points, by name, sorted.

    Entry points are read if a name is not one of those here, and to list all names. Their planners
    are imported when they are looked up. If two planners have the same name, the one here is used.

    ``PLANNERS[name]`` raises KeyError if there is no such planner, and UsageError if its package is
    broken.
    """

    def __getitem__(self, name: str) -> MachinePlanner:
        if name in _SOLVE:
            return Planner(name, _SOLVE[name], _MACHINE)
        return Planner(name, _loaded(_entries()[name]), _MACHINE)

    def __contains__(self, name: object) -> bool:
        return name in _SOLVE or name in _entries()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_SOLVE, *_entries()}))

    def __len__(self) -> int:
        return len({*_SOLVE, *_entries()})


PLANNERS = Planners()
"""All planners that are installed."""


def find_planner(name: str, *other_names: str) -> MachinePlanner:
    """The planner with this name, with an error message for users.

    Args:
        other_names: valid names that are no planners, such as "auto", for the message.

    Raises:
        UsageError: there is no such planner, or it cannot be imported.
    """
    if name not in PLANNERS:
        names = sorted((*other_names, *PLANNERS))
        raise UsageError(
            f"there is no planner {name!r}{nearest(name, names)}; there are {', '.join(names)}"
        )
    return PLANNERS[name]


@functools.cache
def _entries() -> "Mapping[str, EntryPoint]":
    """Planners that are entry points, by name."""
    from importlib.metadata import entry_points  # slow: it imports Python's e-mail parsers

    return {entry.name: entry for entry in entry_points(group=_GROUP)}


@functools.cache
def _loaded(entry: "EntryPoint") -> Callable[..., Any]:
    """The function of an entry point.

    If the function raises an error that is not a CoexecError, the error becomes a PlanError with
    the planner's name.

    Raises:
        UsageError: the function cannot be imported, or is no function.
    """
    try:
        solve = entry.load()
    except Exception as error:
        raise UsageError(
            f"planner {entry.name!r} ({entry.value}) cannot be imported: "
            f"{type(error).__name__}: {first_line(error)}; "
            f"{FOREIGN}"
        ) from error
    if not callable(solve):
        raise UsageError(
            f"planner {entry.name!r} ({entry.value}) is a {type(solve).__name__}, and "
            f"no function solve(problem, *, option=default); "
            f"{FOREIGN}"
        )

    @functools.wraps(solve)
    def guarded(problem: Problem, **options: Any) -> Any:
        try:
            return solve(problem, **options)
        except CoexecError:
            raise
        except Exception as error:
            raise PlanError(
                f"planner {entry.name!r} failed ({type(error).__name__}: "
                f"{first_line(error)}); {FOREIGN}"
            ) from error

    return guarded
