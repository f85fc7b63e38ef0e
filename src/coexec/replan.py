"""Plans that follow the machine: runs are observed, and a lasting drift leads to a new plan."""

from collections.abc import Mapping
from typing import Any

from coexec.compiled import CompiledPlan
from coexec.costs.observed import Observation, Observed
from coexec.pipeline import Pipeline, make_plan
from coexec.plan import Plan
from coexec.schedule import Schedule
from coexec.simulate import segment_s, simulate
from coexec.trace import Trace

__all__ = ["Replanner"]

_PATIENCE = 8
"""Observations in a row beyond the threshold: one disturbance is not a drift."""
_WORTH_IT = 0.97
"""A new plan must be predicted to take this much of the old one's time, or it is not changed."""


class Replanner:
    """Watches one plan. Hysteresis on both sides: a drift must last, and a new plan must pay."""

    def __init__(
        self,
        work: Pipeline,
        plan: Plan,
        planner: str,
        options: Mapping[str, Any] | None = None,
        threshold: float = 0.25,
    ) -> None:
        """``threshold``: how far a device's mean factor must be off, 0.25 for a quarter."""
        self._work = work
        self._planner, self._options = planner, dict(options or {})
        self._threshold = threshold
        base, self._system = work.measured
        self.cost = self._decided = Observed(base)
        """What tasks cost by now, and what they cost when the last plan was made."""
        self._beyond = 0
        self._watch(plan)

    def _watch(self, plan: Plan) -> None:
        self.plan = plan
        self._schedule: Schedule = self._work.schedule(plan)
        self._predicted_s = [
            segment_s(s, self._schedule, self.cost.base) for s in self._schedule.segments
        ]

    def observe(self, trace: Trace) -> CompiledPlan | None:
        """Take a run into account; a new plan, ready to start, if it is time for one."""
        observations = [
            Observation(span.device, span.tasks, self._predicted_s[span.segment], span.duration_s)
            for span in trace.spans
            if span.kind == "compute"
        ]
        self.cost = self.cost.after(observations)
        self._beyond = self._beyond + 1 if self._drifts() else 0
        if self._beyond < _PATIENCE:
            return None
        self._beyond = 0
        self._decided = self.cost
        return self._better()

    def _drifts(self) -> bool:
        return self.cost.drift(self._decided) > self._threshold

    def _better(self) -> CompiledPlan | None:
        """The compiled plan for the costs by now, if it is clearly shorter than the one in use."""
        graph = self._work.model.graph
        cost = self._work.pinned(self.cost, self._system)
        plan = make_plan(self._planner, self._options, graph, cost, self._system)
        if self._makespan_s(plan) > _WORTH_IT * self._makespan_s(self.plan):
            return None
        self._watch(plan)
        return self._work.compiled_plan(plan)

    def _makespan_s(self, plan: Plan) -> float:
        return simulate(self._work.schedule(plan), self.cost, self._system).makespan_s
