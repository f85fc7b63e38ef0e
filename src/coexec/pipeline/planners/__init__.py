"""Planners of pipelines: pure functions from graph, costs and machines to a pipeline plan.

    from coexec.pipeline.planners import PIPELINES
    plan = PIPELINES["pico"](graph, CapacityCosts(capacities), system, rebalance="stages")

To add a planner: one file with its name and a function ``solve``, and one row here.
Options are keyword-only, have defaults and carry their unit in the name.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from coexec.costs.capacity import ShareCosts
from coexec.graph.graph import Graph
from coexec.hardware.hardware import System
from coexec.pipeline.plan.plan import PipelinePlan
from coexec.pipeline.plan.verify import verify_pipeline
from coexec.pipeline.planners import (
    coedge,
    early_fused,
    layer_wise,
    optimal_fused,
    pico,
    pico_blocks,
    pico_exhaustive,
)
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution
from coexec.plan.plan import Provenance
from coexec.planners.methods.options import check_options, made_with, options_of

__all__ = ["PIPELINES", "PipelinePlanner"]


@dataclass(frozen=True)
class PipelinePlanner:
    """A planner of pipelines with its name. A call returns a verified plan."""

    name: str
    solve: Callable[..., PipelineSolution]
    """``solve(problem, *, option=default, ...)``."""

    def __call__(
        self, graph: Graph, cost: ShareCosts, system: System, **options: Any
    ) -> PipelinePlan:
        """Plan ``graph`` for machines, each a device of ``system``.

        Raises:
            InfeasibleError: no machine can hold its share, or no plan is fast enough.
            UsageError, DeviceError, PlanError: an option has no meaning for this planner or case.
        """
        return self.plan(PipelineProblem(graph, cost, system), **options)

    def plan(self, problem: PipelineProblem, **options: Any) -> PipelinePlan:
        """Plan ``problem``. A problem that is used again keeps the results that depend on its
        graph."""
        check_options(self.name, self.options, options)
        solution = self.solve(problem, **options)
        used = made_with(self.solve, options, solution)
        provenance = Provenance(
            self.name, used, solution.status, solution.predicted_s, solution.bound_s
        )
        plan = PipelinePlan(
            problem.graph.fingerprint, solution.stages, provenance, solution.at_once, solution.notes
        )
        verify_pipeline(plan, problem.graph, problem.system)
        return plan

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """The options by name, each with its default and type."""
        return options_of(self.solve)


_SOLVE: Mapping[str, Callable[..., PipelineSolution]] = {
    "coedge": coedge.solve,
    "early_fused": early_fused.solve,
    "layer_wise": layer_wise.solve,
    "optimal_fused": optimal_fused.solve,
    "pico": pico.solve,
    "pico_blocks": pico_blocks.solve,
    "pico_exhaustive": pico_exhaustive.solve,
}

PIPELINES: Mapping[str, PipelinePlanner] = MappingProxyType(
    {name: PipelinePlanner(name, solve) for name, solve in _SOLVE.items()}
)
"""Name -> planner, sorted by name."""
