"""Planners of pipelines: pure functions from graph, costs and machines to a pipeline plan.

    from coexec.pipeline.planners import PIPELINES
    plan = PIPELINES["pico"](graph, CapacityCosts(capacities), system, rebalance="stages")

To add a planner: one file with its name and a function ``solve``, and one row here.
Options are keyword-only, have defaults and carry their unit in the name.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from coexec.costs.capacity import CapacityCosts
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
from coexec.problem.planner import Planner, PlannerKind

__all__ = ["PIPELINES", "PipelinePlanner"]


PipelinePlanner: TypeAlias = Planner[CapacityCosts, PipelineProblem, PipelineSolution, PipelinePlan]


def _plan(
    problem: PipelineProblem, solution: PipelineSolution, planner: str, options: Mapping[str, Any]
) -> PipelinePlan:
    """The plan of a solution."""
    provenance = Provenance(
        planner, dict(options), solution.status, solution.predicted_s, solution.bound_s
    )
    return PipelinePlan(
        problem.graph.fingerprint, solution.stages, provenance, solution.at_once, solution.notes
    )


_PIPELINE = PlannerKind(PipelineProblem, PipelineSolution, _plan, verify_pipeline)

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
    {name: Planner(name, solve, _PIPELINE) for name, solve in _SOLVE.items()}
)
"""Name -> planner, sorted by name."""
