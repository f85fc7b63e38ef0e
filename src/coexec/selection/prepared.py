"""A plan with its origin, its compiled form, and the decision that took it."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from coexec.costs.base import CostModel
from coexec.errors import UsageError
from coexec.graph.graph import Graph
from coexec.hardware.hardware import System
from coexec.plan.plan import Plan
from coexec.plan.schedule import Schedule
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.pool import Pool
from coexec.runtime.runner import Runner
from coexec.selection.decision import Candidate, Decision

if TYPE_CHECKING:
    from coexec.model.digest import Shapes
    from coexec.selection.planning_context import PlanningContext


@dataclass(frozen=True, eq=False)
class Simulated:
    """A model on simulated devices."""

    graph: Graph
    measured: tuple[CostModel, System]
    shapes: "Shapes"

    def schedule(self, plan: Plan) -> Schedule:
        from coexec.plan.derive import derive
        from coexec.plan.plan import verify_plan

        verify_plan(plan, self.graph, self.measured[1])
        return derive(plan, self.graph)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan that can be inspected and, if it is for this machine's devices, started.

    Properties are computed on first use, so a plan from the cache starts without loading the model.
    """

    origin: "PlanningContext | Simulated"
    """Origin of the plan: a model on this machine's devices, or on simulated ones."""
    plan: Plan
    runnable: CompiledPlan | None = None
    """The compiled plan; None on simulated devices."""
    decision: Decision | None = None
    """How planner "auto" chose it; None for other planners."""
    beside: "tuple[Prepared, ...]" = ()
    """Plans for other devices that answer other requests at the same time (mode "throughput")."""
    key: str = ""
    """Cache key of the plan, the model and the devices, for results of comparisons."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What planner "auto" considered, the taken one first; empty for other planners."""
        return () if self.decision is None else self.decision.candidates

    @property
    def compiled(self) -> CompiledPlan:
        """The compiled plan.

        Raises:
            UsageError: the devices are simulated.
        """
        if self.runnable is None:
            raise UsageError(
                "this plan is for simulated devices, it cannot run here; plan again "
                "without --platform"
            )
        return self.runnable

    @property
    def work(self) -> "PlanningContext":
        """The model and devices with which the plan starts.

        Raises:
            UsageError: the devices are simulated.
        """
        if isinstance(self.origin, Simulated):
            raise UsageError("this plan is for simulated devices; plan again without --platform")
        return self.origin

    def start(self) -> Runner:
        """Start the plan, and the plans beside it, on their devices. The caller closes the runner.

        Raises:
            CoexecError: a plan does not start.
        """
        if not self.beside:
            return self.work.start(self)
        with ExitStack() as stack:
            each = (self, *self.beside)
            runners = [stack.enter_context(plan.work.start(plan)) for plan in each]
            stack.pop_all()
        return Pool(runners)

    @property
    def graph(self) -> Graph:
        return self.origin.graph

    @cached_property
    def schedule(self) -> Schedule:
        """Segments and transfers of the plan."""
        return self.origin.schedule(self.plan)

    @property
    def cost(self) -> CostModel:
        return self.origin.measured[0]

    @property
    def system(self) -> System:
        return self.origin.measured[1]
