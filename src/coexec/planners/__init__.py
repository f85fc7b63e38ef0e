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
from typing import TYPE_CHECKING, Any, TypeAlias

from coexec.costs.base import CostModel
from coexec.errors import CoexecError, PlanError, UsageError, first_line, nearest
from coexec.plan.plan import Plan, verify_plan
from coexec.planners import (
    anneal,
    codl,
    dmdar,
    heft,
    hope_greedy,
    mosaic,
    single,
)
from coexec.planners.methods.search.starts import sorted_starts
from coexec.problem.building import build_plan
from coexec.problem.planner import FOREIGN, Planner, PlannerKind
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["PLANNERS", "MachinePlanner", "Planner", "Planners", "find_planner", "search_starts"]

_GROUP = "coexec.planners"


MachinePlanner: TypeAlias = Planner[CostModel, Problem, Solution, Plan]

_MACHINE = PlannerKind(Problem, Solution, build_plan, verify_plan)


def search_starts(problem: Problem) -> list[Solution]:
    """The plans of the fast planners, which searches start from, the shortest first.

    One for a single device is not needed, as hope_greedy returns no slower plan.
    """
    return sorted_starts(problem, (dmdar.solve, hope_greedy.solve, mosaic.solve), heft.solve)


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
