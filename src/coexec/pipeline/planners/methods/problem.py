"""The input and the result of a planner of pipelines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from coexec.costs.capacity import CapacityCosts
from coexec.graph.graph import Graph
from coexec.hardware.hardware import System
from coexec.pipeline.plan.plan import Stage
from coexec.pipeline.planners.methods.bodies import Bodies, StageBody, balanced
from coexec.pipeline.planners.methods.network import StageLoad, StageTime, TimeModel, Wires
from coexec.pipeline.planners.methods.rows import Range, RowGraph


class Group(NamedTuple):
    """Consecutive tasks, and the machines that compute them; the leader is first."""

    tasks: int
    """The tasks as bits."""
    machines: tuple[str, ...]


class Staged(NamedTuple):
    """A group with the rows of each machine."""

    group: Group
    shares: tuple[Range, ...]
    """The rows of the tallest output that each machine computes; the range may be empty."""
    load: StageLoad


@dataclass(frozen=True)
class PipelineSolution:
    """The result of a planner of pipelines."""

    stages: tuple[Stage, ...]
    predicted_s: float | None = None
    """The period in the planner's model of time."""
    status: str = "feasible"
    bound_s: float | None = None
    at_once: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class PipelineProblem:
    """A graph, the costs of its tasks on machines, and the network between the machines."""

    def __init__(
        self, graph: Graph, cost: CapacityCosts, system: System, bodies: Bodies | None = None
    ) -> None:
        """
        Args:
            bodies: those of an earlier problem with the same graph; None creates them.
        """
        self.graph, self.cost, self.system = graph, cost, system
        self._bodies = bodies
        self.chains: dict[int, tuple[int, ...]] = {}
        """The pieces of Algorithm 1 by diameter. They do not depend on the machines."""
        self._staged: dict[tuple[int, int, tuple[str, ...]], Staged] = {}

    def on(self, cost: CapacityCosts, system: System) -> "PipelineProblem":
        """The problem of the same graph on other machines; results for the graph alone are kept."""
        other = PipelineProblem(self.graph, cost, system, self.bodies)
        other.chains = self.chains
        return other

    @cached_property
    def bodies(self) -> Bodies:
        """Bodies and tails of sets of the graph's tasks."""
        return Bodies(RowGraph(self.graph)) if self._bodies is None else self._bodies

    @property
    def rows(self) -> RowGraph:
        """The graph as numbers."""
        return self.bodies.rows

    @cached_property
    def wires(self) -> Wires:
        """The network as numbers."""
        return Wires.of(self.system)

    @cached_property
    def rate(self) -> Mapping[str, float]:
        """Capacity of each machine: multiply-accumulates per second on the whole model."""
        macs = max(1, self.graph.macs)
        seconds = {name: self.cost.seconds(name, macs) for name in self.system.names}
        return {name: macs / max(s, 1e-12) for name, s in seconds.items()}

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """The names of the machines, by falling capacity."""
        names = self.system.names
        return tuple(sorted(names, key=lambda name: (-self.rate[name], names.index(name))))

    @property
    def mean_mac_s(self) -> float:
        """Seconds per multiply-accumulate on a machine with the mean capacity."""
        return len(self.rate) / sum(self.rate.values())

    def staged(self, done: int, group: Group) -> Staged:
        """The stage of a group after the tasks ``done``: rows that end together, and its load."""
        key = (done, group.tasks, group.machines)
        staged = self._staged.get(key)
        if staged is None:
            body = self.bodies.of(group.tasks)
            shares = self.shares(body, group.machines)
            staged = Staged(group, shares, self.load(done, body, group.machines, shares))
            self._staged[key] = staged
        return staged

    def shares(self, body: StageBody, machines: Sequence[str]) -> tuple[Range, ...]:
        """The rows of each machine, so that all machines end together; the leader's time includes
        the tail."""
        if len(machines) == 1:
            return ((0, body.height),)
        tail_s = self.cost.seconds(machines[0], body.tail_macs)

        def ends(k: int, share: Range) -> float:
            seconds = tail_s if k == 0 else 0.0
            if share[0] < share[1]:
                seconds += self.cost.seconds(machines[k], body.work(share).macs)
            return seconds

        return balanced(body, [self.rate[name] for name in machines], ends)

    def load(
        self, done: int, body: StageBody, machines: Sequence[str], shares: Sequence[Range]
    ) -> StageLoad:
        """Computation and messages of a stage after the tasks ``done``."""
        works = [body.work(share) for share in shares]
        ends = [
            self.cost.seconds(name, work.macs) for name, work in zip(machines, works, strict=True)
        ]
        ends[0] += self.cost.seconds(machines[0], body.tail_macs)
        return StageLoad(
            max(ends),
            sum(work.read_bytes for work in works[1:]),
            sum(work.made_bytes for work in works[1:]),
            self.handed_on_bytes(done) if done else 0,
            self.handed_on_bytes(after) if (after := done | body.tasks) != self.all else 0,
        )

    def handed_on_bytes(self, done: int) -> int:
        """Bytes that a stage sends to the next one after the tasks ``done`` have run."""
        size_bytes = self._handed_on.get(done)
        if size_bytes is None:
            rows = self.rows
            tensors = rows.handed_on(done)
            size_bytes = self._handed_on[done] = sum(
                rows.rows[t] * rows.row_bytes[t] for t in tensors
            )
        return size_bytes

    @cached_property
    def _handed_on(self) -> dict[int, int]:
        return {}

    @property
    def all(self) -> int:
        """All tasks, as bits."""
        return (1 << len(self.graph.tasks)) - 1

    def times(self, groups: Sequence[Group], model: TimeModel) -> list[StageTime]:
        """The time of each stage."""
        done, stage_times = 0, []
        for group in groups:
            stage_times.append(self.wires.stage_time(self.staged(done, group).load, model))
            done |= group.tasks
        return stage_times

    def period_s(self, groups: Sequence[Group], model: TimeModel) -> float:
        """Seconds per frame of the pipeline of these groups."""
        return self.wires.period_s(self.times(groups, model))
