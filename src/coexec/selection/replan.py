"""Plans that adapt to the machine: runs are observed, and a lasting drift leads to a new plan."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coexec.costs.observed import Observation, Observed
from coexec.plan.plan import Plan
from coexec.selection.planning_context import make_plan
from coexec.selection.prepared import Prepared
from coexec.timing.simulate import segment_s, simulate
from coexec.timing.trace import Trace

_PATIENCE = 8
"""Number of observations in a row beyond the threshold: one disturbance is not a drift."""
_WORTH_IT = 0.97
"""Largest share of the old plan's time that a new plan may be predicted to take."""


@dataclass(frozen=True, eq=False)
class _Watched:
    """The plan in use, and the predicted seconds of each of its segments."""

    prepared: Prepared
    predicted_s: Sequence[float]


class Replanner:
    """Observes one plan. There is hysteresis on both sides: a drift must last, and a new plan must
    be clearly faster.

    Several threads may call `observe`. While one of them plans, the others continue.
    """

    def __init__(
        self,
        prepared: Prepared,
        planner: str,
        options: Mapping[str, Any] | None = None,
        threshold: float = 0.25,
    ) -> None:
        """``threshold``: drift of a device's mean factor that is too large, 0.25 for a quarter."""
        self._work = prepared.work
        self._planner, self._options = planner, dict(options or {})
        self._threshold = threshold
        base, self.system = prepared.work.measured
        self.cost = self._decided = Observed(base)
        """Current costs of tasks, and their costs when the last plan was made."""
        self._beyond = 0
        self._lock = threading.Lock()
        self._watched = self._watch(prepared)

    @property
    def plan(self) -> Plan:
        """The plan that is observed."""
        return self._watched.prepared.plan

    def _watch(self, prepared: Prepared) -> _Watched:
        schedule = prepared.schedule
        seconds = [segment_s(s, schedule, self.cost.base) for s in schedule.segments]
        return _Watched(prepared, seconds)

    def observe(self, trace: Trace, prepared: Prepared) -> Prepared | None:
        """Take a run of a plan into account; return a new plan, ready to start, if one is due."""
        if not self._lock.acquire(blocking=False):
            return None  # another thread is observing its own run; this run is skipped
        try:
            return self._observe(trace, prepared)
        finally:
            self._lock.release()

    def _observe(self, trace: Trace, prepared: Prepared) -> Prepared | None:
        if prepared is not self._watched.prepared:  # a new plan, or a late run of the old one
            self._watched = self._watch(prepared)
        predicted_s = self._watched.predicted_s
        observations = [
            Observation(span.place, span.tasks, predicted_s[span.segment], span.duration_s)
            for span in trace.of("compute")
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

    def _better(self) -> Prepared | None:
        """The plan for the current costs, if it is clearly faster than the plan in use."""
        graph = self._work.model.graph
        cost = self._work.pinned(self.cost, self.system)
        plan = make_plan(self._planner, self._options, graph, cost, self.system)
        if self._makespan_s(plan) > _WORTH_IT * self._makespan_s(self.plan):
            return None
        return self._work.prepared(plan)

    def _makespan_s(self, plan: Plan) -> float:
        return simulate(self._work.schedule(plan), self.cost, self.system).makespan_s
