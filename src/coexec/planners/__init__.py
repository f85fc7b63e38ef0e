"""Planners: from graph, costs and system to a plan. Pure: same input and options, same plan.

    from coexec.planners import PLANNERS
    plan = PLANNERS["hope_greedy"](graph, cost, system, top_k=4)

To add a planner: one file whose name is the planner's, with a function ``plan``, and one row here.
Options are keyword-only, have defaults and carry their unit in the name.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Concatenate, TypeAlias

from coexec.costs.base import CostModel
from coexec.ir.graph import Graph
from coexec.planners import (
    anneal,
    cpsat,
    dmdar,
    exhaustive,
    heft,
    hope_greedy,
    hope_ilp,
    mosaic,
    single,
)
from coexec.plans.plan import Plan
from coexec.system.hardware import System

__all__ = ["PLANNERS", "Planner"]

Planner: TypeAlias = Callable[Concatenate[Graph, CostModel, System, ...], Plan]
"""``plan(graph, cost, system, *, option=default, ...) -> Plan``; raises InfeasibleError."""

PLANNERS: Mapping[str, Planner] = MappingProxyType(
    {
        "anneal": anneal.plan,
        "cpsat": cpsat.plan,
        "dmdar": dmdar.plan,
        "exhaustive": exhaustive.plan,
        "heft": heft.plan,
        "hope_greedy": hope_greedy.plan,
        "hope_ilp": hope_ilp.plan,
        "mosaic": mosaic.plan,
        "single": single.plan,
    }
)
"""Name -> planner, sorted by name."""
