"""Which pipeline a cluster runs: plans for the machines there are, judged by the simulator."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from coexec.costs.capacity import Capacity, CapacityCosts
from coexec.errors import InfeasibleError, UsageError
from coexec.ir.graph import Graph
from coexec.pipelines import PIPELINES
from coexec.plans.pipeline.plan import PipelinePlan
from coexec.solvers.options import check_options
from coexec.solvers.stages.problem import PipelineProblem
from coexec.system.hardware import System
from coexec.system.network import Network, connected, machine
from coexec.timing.pipeline import PipelineRun, simulate_pipeline

__all__ = ["KnownMachine", "Planned", "Planning", "exchanged", "response_s"]

_FRAMES_PER_STAGE = 4
"""Of a simulation, and a few more: enough for a steady period."""
_SLOW_PORT = 0.5
"""A machine whose port has less than this share of the best one's may be better left out."""


_ONE_AT_A_TIME = ("coedge", "optimal_fused")
"""Planners that let all machines work at one frame."""


@dataclass(frozen=True)
class KnownMachine:
    """What is known of a machine."""

    name: str
    capacity: Capacity
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    """Of a message, besides its bytes."""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Planned:
    """A plan and what the simulator says of it."""

    plan: PipelinePlan
    period_s: float
    """Seconds from one answer to the next, while frames wait at the door."""
    latency_s: float
    """Of a frame that is alone."""
    utilisation: Mapping[str, float] = field(default_factory=dict)

    @property
    def credits(self) -> int:
        """Frames to have inside: each machine has one to compute and one to receive, and no frame
        waits long."""
        if self.plan.at_once is not None:
            return self.plan.at_once
        return 2 * len(self.plan.stages) + 1


class Planning:
    """Plans for one model; what is known of the model alone is worked out once."""

    def __init__(
        self,
        graph: Graph,
        planner: str,
        options: Mapping[str, Any],
        network: Network = "ports",
    ) -> None:
        """
        Raises:
            UsageError: there is no such planner, or it has no such option or value.
        """
        if planner not in PIPELINES:
            raise UsageError(f"there is no planner {planner!r} of pipelines; there are "
                             f"{', '.join(PIPELINES)}")  # fmt: skip
        check_options(planner, PIPELINES[planner].options, options)
        self.graph, self.network = graph, network
        self.door: str | None = None
        """The machine from which frames come, if it is one of them, or another name; None: from the
        first leader."""
        self.planner, self._options = PIPELINES[planner], dict(options)
        self._problem: PipelineProblem | None = None

    def plan(self, machines: Sequence[KnownMachine], quick: bool = False) -> Planned:
        """The best of what the planner finds for all machines, and for those with fast ports.

        Args:
            quick: leave out what takes seconds.

        Raises:
            InfeasibleError: the machines cannot hold the model.
        """
        best_port = max(known.bandwidth_bytes_per_s for known in machines)
        fast = [m for m in machines if m.bandwidth_bytes_per_s >= _SLOW_PORT * best_port]
        found: list[Planned] = []
        refusal: InfeasibleError | None = None
        for chosen in (machines, fast) if len(fast) < len(machines) else (machines,):
            try:
                plan = self._plan(chosen, quick)
            except InfeasibleError as error:
                refusal = error
                continue
            found.append(self.judged(plan, machines))
            if self.door in plan.machines:
                changed = exchanged(plan, plan.stages[0].leader, str(self.door))
                found.append(self.judged(changed, machines))
        if not found:
            assert refusal is not None
            raise refusal
        return min(found, key=lambda planned: planned.period_s)

    def quick_answers(self, machines: Sequence[KnownMachine]) -> list[Planned]:
        """Plans in which all machines work at one frame, and that of the best machine alone: for
        few frames, which then are answered sooner than by a pipeline (PICO's one-stage mode)."""
        found = []
        for name in _ONE_AT_A_TIME:
            costs, system = self._described(machines)
            with suppress(InfeasibleError):
                plan = PIPELINES[name].plan(self._problem_on(costs, system))
                found.append(self.judged(plan, machines))
        with suppress(InfeasibleError):
            best = min(machines, key=lambda m: m.capacity.alpha / m.capacity.flops_per_s)
            found.append(self.judged(self._plan([best], quick=True), machines))
        return found

    def judged(self, plan: PipelinePlan, machines: Sequence[KnownMachine]) -> Planned:
        """What the simulator says of a plan on these machines, if frames come from the door's."""
        costs, system = self._described(machines)
        if self.door is not None and self.door not in system.names:
            # Frames come from no machine of the plan, by a port like the best one.
            best = max(machines, key=lambda known: known.bandwidth_bytes_per_s)
            outside = replace(best, name=self.door)
            costs, system = self._described([*machines, outside])
        frames = _FRAMES_PER_STAGE * len(plan.stages) + 8
        run: PipelineRun = simulate_pipeline(
            plan, self.graph, costs, system, frames, credits=Planned(plan, 0, 0).credits,
            door=self.door,
        )  # fmt: skip
        shares = {name: run.utilisation(name) for name in plan.machines}
        return Planned(plan, run.period_s, run.latency_s, shares)

    def _plan(self, machines: Sequence[KnownMachine], quick: bool) -> PipelinePlan:
        costs, system = self._described(machines)
        options = dict(self._options)
        if "rebalance" in self.planner.options and "rebalance" not in options:
            options["rebalance"] = "shares" if quick or len(machines) == 1 else "stages"
        return self.planner.plan(self._problem_on(costs, system), **options)

    def _problem_on(self, costs: CapacityCosts, system: System) -> PipelineProblem:
        if self._problem is None:
            self._problem = PipelineProblem(self.graph, costs, system)
        return self._problem.on(costs, system)

    def _described(self, machines: Sequence[KnownMachine]) -> tuple[CapacityCosts, System]:
        costs = CapacityCosts({known.name: known.capacity for known in machines})
        ports = {known.name: known.bandwidth_bytes_per_s for known in machines}
        devices = [machine(known.name, known.memory_bytes) for known in machines]
        latency_s = max(known.latency_s for known in machines)
        return costs, connected(devices, ports, self.network, latency_s)


def exchanged(plan: PipelinePlan, a: str, b: str) -> PipelinePlan:
    """The plan with two machines in each other's places."""
    names = {a: b, b: a}

    def of(name: str) -> str:
        return names.get(name, name)

    stages = tuple(
        replace(stage, leader=of(stage.leader),
                shares=tuple(replace(share, machine=of(share.machine)) for share in stage.shares))
        for stage in plan.stages
    )  # fmt: skip
    return replace(plan, stages=stages)


def response_s(planned: Planned, rate_per_s: float) -> float:
    """Mean seconds from a frame's arrival to its answer, if frames come independently at a rate:
    an M/D/1 queue before the pipeline, as in PICO's conference version."""
    load = rate_per_s * planned.period_s
    if load >= 1:
        return float("inf")
    return planned.latency_s + load * planned.period_s / (2 * (1 - load))
