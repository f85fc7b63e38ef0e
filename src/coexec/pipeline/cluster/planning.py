"""Choose the pipeline that a cluster runs: make plans for its machines, and simulate them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from coexec.costs.capacity import Capacity, CapacityCosts
from coexec.errors import InfeasibleError, UsageError
from coexec.graph.graph import Graph
from coexec.hardware.hardware import System
from coexec.pipeline.network import NetworkKind, connected, machine
from coexec.pipeline.plan.plan import PipelinePlan
from coexec.pipeline.planners import PIPELINES
from coexec.pipeline.planners.methods.problem import PipelineProblem
from coexec.pipeline.simulate import PipelineRun, simulate_pipeline

_FRAMES_PER_STAGE = 4
"""Frames of a simulation by stage; with a few more, enough for a steady period."""
_SLOW_PORT = 0.5
"""A machine whose port has less than this share of the best port's bandwidth may be better left
out."""


_ONE_AT_A_TIME = ("coedge", "optimal_fused")
"""Planners of pipelines in which all machines compute the same frame."""


@dataclass(frozen=True)
class KnownMachine:
    """Stated or measured properties of a machine."""

    name: str
    capacity: Capacity
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    """Seconds of a message, without the transfer time of its bytes."""
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Planned:
    """A plan and its simulated performance."""

    plan: PipelinePlan
    period_s: float
    """Seconds from one answer to the next, while frames wait at the door."""
    latency_s: float
    """Seconds of a frame that is alone in the pipeline."""
    utilisation: Mapping[str, float] = field(default_factory=dict)

    @property
    def credits(self) -> int:
        """Number of frames to have in flight: each machine has one to compute and one to receive,
        and no frame waits long."""
        if self.plan.at_once is not None:
            return self.plan.at_once
        return 2 * len(self.plan.stages) + 1


class Planning:
    """Makes plans for one model. Results that depend on the model alone are computed once."""

    def __init__(
        self,
        graph: Graph,
        planner: str,
        options: Mapping[str, Any],
        network: NetworkKind = "ports",
    ) -> None:
        """
        Raises:
            UsageError: there is no such planner, or it has no such option or value.
        """
        if planner not in PIPELINES:
            raise UsageError(
                f"there is no planner {planner!r} of pipelines; there are {', '.join(PIPELINES)}"
            )
        PIPELINES[planner].check(options)
        self.graph, self.network = graph, network
        self.door: str | None = None
        """Machine from which frames come, or another name if they come from outside; None: from the
        first leader."""
        self.planner, self._options = PIPELINES[planner], dict(options)
        self._problem: PipelineProblem | None = None

    def plan(self, machines: Sequence[KnownMachine], quick: bool = False) -> Planned:
        """The plan with the shortest period, of the planner's plans for all machines and for those
        with fast ports.

        Args:
            quick: skip steps of the planner that take seconds.

        Raises:
            InfeasibleError: the machines cannot hold the model.
        """
        best_port = max(each.bandwidth_bytes_per_s for each in machines)
        fast = [m for m in machines if m.bandwidth_bytes_per_s >= _SLOW_PORT * best_port]
        candidates: list[Planned] = []
        refusal: InfeasibleError | None = None
        for chosen in (machines, fast) if len(fast) < len(machines) else (machines,):
            try:
                plan = self._plan(chosen, quick)
            except InfeasibleError as error:
                refusal = error
                continue
            candidates.append(self.judged(plan, machines))
            if self.door in plan.machines:
                changed = exchanged(plan, plan.stages[0].leader, str(self.door))
                candidates.append(self.judged(changed, machines))
        if not candidates:
            assert refusal is not None
            raise refusal
        return min(candidates, key=lambda planned: planned.period_s)

    def quick_answers(self, machines: Sequence[KnownMachine]) -> list[Planned]:
        """Plans in which all machines compute the same frame, and the plan of the fastest machine
        alone. When frames are few, these plans answer sooner than a pipeline (PICO's one-stage
        mode)."""
        candidates = []
        for name in _ONE_AT_A_TIME:
            costs, system = self._described(machines)
            with suppress(InfeasibleError):
                plan = PIPELINES[name].plan(self._problem_on(costs, system))
                candidates.append(self.judged(plan, machines))
        with suppress(InfeasibleError):
            best = min(machines, key=lambda m: m.capacity.alpha / m.capacity.flops_per_s)
            candidates.append(self.judged(self._plan([best], quick=True), machines))
        return candidates

    def judged(self, plan: PipelinePlan, machines: Sequence[KnownMachine]) -> Planned:
        """A plan with its simulated performance on these machines, with frames from ``door``."""
        costs, system = self._described(machines)
        if self.door is not None and self.door not in system.names:
            # Frames come from outside the plan; their source gets a port like the best one.
            best = max(machines, key=lambda machine: machine.bandwidth_bytes_per_s)
            outside = replace(best, name=self.door)
            costs, system = self._described([*machines, outside])
        frames = _FRAMES_PER_STAGE * len(plan.stages) + 8
        run: PipelineRun = simulate_pipeline(
            plan,
            self.graph,
            costs,
            system,
            frames,
            credits=Planned(plan, 0, 0).credits,
            door=self.door,
        )
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
        costs = CapacityCosts({each.name: each.capacity for each in machines})
        ports = {each.name: each.bandwidth_bytes_per_s for each in machines}
        devices = [machine(each.name, each.memory_bytes) for each in machines]
        latency_s = max(each.latency_s for each in machines)
        return costs, connected(devices, ports, self.network, latency_s)


def exchanged(plan: PipelinePlan, a: str, b: str) -> PipelinePlan:
    """The plan with machines ``a`` and ``b`` exchanged."""
    names = {a: b, b: a}

    def of(name: str) -> str:
        return names.get(name, name)

    stages = tuple(
        replace(
            stage,
            leader=of(stage.leader),
            shares=tuple(replace(share, machine=of(share.machine)) for share in stage.shares),
        )
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def response_s(planned: Planned, rate_per_s: float) -> float:
    """Mean seconds from a frame's arrival to its answer, if frames come independently at a rate:
    an M/D/1 queue before the pipeline, as in PICO's conference version."""
    load = rate_per_s * planned.period_s
    if load >= 1:
        return float("inf")
    return planned.latency_s + load * planned.period_s / (2 * (1 - load))
