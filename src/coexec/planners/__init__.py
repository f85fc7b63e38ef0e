"""Planners: from graph, costs and system to a plan. Pure: same input and options, same plan.

    from coexec.planners import PLANNERS
    plan = PLANNERS["hope_greedy"](graph, cost, system, top_k=4)

To add a planner: one file whose name is the planner's, with a function ``solve``, and one row here.
Options are keyword-only, have defaults and carry their unit in the name.
"""

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from coexec.costs.base import CostModel
from coexec.ir.graph import Graph
from coexec.planners import (
    anneal,
    codl,
    cpsat,
    dmdar,
    exhaustive,
    heft,
    hope_greedy,
    hope_ilp,
    mosaic,
    mulayer,
    single,
)
from coexec.plans.plan import Plan, verify_plan
from coexec.problem.building import build_plan
from coexec.problem.division import Division, planned
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution
from coexec.solvers.options import made_with, options_of
from coexec.system.hardware import System

__all__ = ["PLANNERS", "Planner"]


@dataclass(frozen=True)
class Planner:
    """A planner by its name. A call returns a verified plan that says which options made it."""

    name: str
    solve: Callable[..., Solution | Division]
    """``solve(problem, *, option=default, ...)``."""

    def __call__(self, graph: Graph, cost: CostModel, system: System, **options: Any) -> Plan:
        """Plan ``graph`` for the devices of ``system``.

        Raises:
            InfeasibleError: some task runs on no device, or no memory can hold the plan.
            UsageError, DeviceError, PlanError: an option has no meaning for this planner or case.
        """
        with _older_objects_kept():
            problem = Problem(graph, cost, system)
            solution = self.solve(problem, **options)
            used = made_with(self.solve, options, solution)
            if isinstance(solution, Division):
                plan = planned(problem, solution, self.name, used)
            else:
                plan = build_plan(problem, solution, self.name, used)
        verify_plan(plan, graph, system)
        return plan

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """The options by name, each with its default and type."""
        return options_of(self.solve)


@contextmanager
def _older_objects_kept() -> Iterator[None]:
    """Until the end, garbage is looked for among new objects only.

    Planning makes millions of objects, so that all of the process's are looked through every now
    and then: a fifth of the time, for garbage that planning does not make. Where the caller, or
    another thread, has frozen objects already, nothing changes.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


_SOLVE: Mapping[str, Callable[..., Solution | Division]] = {
    "anneal": anneal.solve,
    "codl": codl.solve,
    "cpsat": cpsat.solve,
    "dmdar": dmdar.solve,
    "exhaustive": exhaustive.solve,
    "heft": heft.solve,
    "hope_greedy": hope_greedy.solve,
    "hope_ilp": hope_ilp.solve,
    "mosaic": mosaic.solve,
    "mulayer": mulayer.solve,
    "single": single.solve,
}

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {name: Planner(name, solve) for name, solve in _SOLVE.items()}
)
"""Name -> planner, sorted by name."""
