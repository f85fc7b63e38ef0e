"""The planning problem in numbers.

Tasks, tensors and devices are indices. Tasks are numbered in topological order.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import inf

from coexec.costs.base import CostModel
from coexec.costs.remembered import RememberedCosts
from coexec.errors import InfeasibleError
from coexec.graph.graph import Graph, Task
from coexec.graph.task_samples import GraphParts
from coexec.hardware.hardware import Link, Place, System
from coexec.plan.footprint import task_bytes
from coexec.problem.bounds import Bounds, Matrix
from coexec.problem.indexed import IndexedGraph
from coexec.timing.clock import Move, Places, places_of
from coexec.units import format_bytes


@dataclass(frozen=True)
class Problem(IndexedGraph):
    """Place each task of ``graph`` on a device of ``system`` and order them there.

    Raises:
        InfeasibleError: a task runs on no device.
    """

    cost: CostModel
    system: System

    def __post_init__(self) -> None:
        for task, row in zip(self.graph.tasks, self.latency_s, strict=True):
            if min(row) == inf:
                raise _infeasible(self.graph, task, self.system)

    @property
    def devices(self) -> range:
        """All devices."""
        return range(len(self.system.devices))

    @property
    def processors(self) -> tuple[int, ...]:
        """By device, the index of its processor. Devices that share one never compute at the same
        time."""
        return self.places.processor

    @property
    def shares_processors(self) -> bool:
        """Whether devices share a processor."""
        return len(set(self.processors)) < len(self.devices)

    def refuse_shared(self, planner: str) -> None:
        """For planners that assume devices which all compute at the same time.

        Raises:
            InfeasibleError: devices share a processor.
        """
        if self.shares_processors:
            raise InfeasibleError(
                f"planner {planner} takes one engine for each processor, not "
                f"{', '.join(map(str, self.system.places))}; leave some out, or use a planner that "
                f"chooses the engine of each task, such as heft or codl"
            )

    @cached_property
    def parts(self) -> GraphParts:
        """Properties of parts of tasks."""
        return GraphParts(self.graph)

    @cached_property
    def remembered_cost(self) -> CostModel:
        """`cost` with a cache, for repeated queries of the same parts of tasks."""
        return RememberedCosts(self.cost, self.parts)

    @cached_property
    def places(self) -> Places:
        """The devices in the form that the clock uses."""
        return places_of(self.system)

    @property
    def links(self) -> tuple[tuple[Link, ...], ...]:
        """Links, by source and target device."""
        return self.places.links

    @cached_property
    def latency_s(self) -> Matrix:
        """Seconds of a whole task, by task and device; infinite where it cannot run.

        A device whose memory is too small for a task cannot run it.
        """
        graph, piece_s = self.graph, self.cost.piece_s
        return tuple(
            tuple(
                piece_s(graph, task, graph.output_of(task).whole, place)
                if _holds(self.system, place, needed)
                else inf
                for place in self.system.places
            )
            for task, needed in ((task, task_bytes(graph, task)) for task in graph.tasks)
        )

    @cached_property
    def launches_s(self) -> tuple[float, ...]:
        """Seconds to start a segment, by device."""
        return tuple(self.cost.launch_s(place) for place in self.system.places)

    @cached_property
    def net_s(self) -> Matrix:
        """Seconds of a task inside a segment, by task and device: one launch less than by
        itself."""
        return tuple(
            tuple(max(0.0, s - launch_s) for s, launch_s in zip(row, self.launches_s, strict=True))
            for row in self.latency_s
        )

    @cached_property
    def transfer_s(self) -> tuple[Matrix, ...]:
        """Seconds that a move occupies the link, by tensor, source and target device."""
        return tuple(
            tuple(
                tuple(
                    0.0 if a == b else self.cost.transfer_s(name, size_bytes, link)
                    for b, link in enumerate(row)
                )
                for a, row in enumerate(self.links)
            )
            for name, size_bytes in zip(self.tensor_names, self.tensor_bytes, strict=True)
        )

    @cached_property
    def moves(self) -> tuple[tuple[tuple[Move, ...], ...], ...]:
        """Moves in the form that the clock uses, by tensor, source and target device."""
        return tuple(
            tuple(
                tuple(Move((tensor, b), a, b, transfer_s) for b, transfer_s in enumerate(row))
                for a, row in enumerate(rows)
            )
            for tensor, rows in enumerate(self.transfer_s)
        )

    def join_s(self, task: int) -> float:
        """Seconds to join the main output of a task that is computed in parts, if it is an output
        of the model."""
        output = self.graph.output_of(self.graph.tasks[task])
        is_returned = output.name in self.graph.outputs
        return self.cost.join_s(output.size_bytes) if is_returned else 0.0

    def comm_s(self, source: int, reader: int, a: int, b: int) -> float:
        """Seconds from the end of ``source`` on ``a`` until ``reader`` has its data on ``b``.

        One latency for the edge and a copy for each of its tensors; none inside one device.
        """
        if a == b:
            return 0.0
        copies_s = sum(self.transfer_s[tensor][a][b] for tensor in self.edges[source, reader])
        return self.links[a][b].sync_latency_s + copies_s

    @cached_property
    def upward_rank_s(self) -> tuple[float, ...]:
        """Upward rank by task: the longest path from its start to the end of the graph, at mean
        costs.

        Means are over the devices that run a task, and over all pairs of two different devices.
        """
        pairs = list(permutations(self.devices, 2))
        latencies_s = [self.links[a][b].sync_latency_s for a, b in pairs]
        copies_s = [[rows[a][b] for a, b in pairs] for rows in self.transfer_s]
        comm_s = {
            tensors: sum(
                latency_s + sum(each_s)
                for latency_s, *each_s in zip(
                    latencies_s, *(copies_s[tensor] for tensor in tensors), strict=True
                )
            )
            / max(1, len(pairs))
            for tensors in set(self.edges.values())
        }
        ranks_s = [0.0] * len(self.tasks)
        for task in reversed(self.tasks):
            rest_s = 0.0
            for reader in self.successors[task]:
                rest_s = max(rest_s, comm_s[self.edges[task, reader]] + ranks_s[reader])
            runs_s = [s for s in self.latency_s[task] if s < inf]
            ranks_s[task] = sum(runs_s) / len(runs_s) + rest_s
        return tuple(ranks_s)

    @cached_property
    def bounds(self) -> Bounds:
        """Lower bounds for plans of unsplit tasks."""
        pairs = permutations(self.devices, 2)
        crossing_s = min((self.links[a][b].sync_latency_s for a, b in pairs), default=0.0)
        return Bounds(
            self.latency_s,
            self.net_s,
            self.launches_s,
            self.predecessors,
            self.precedes,
            self.comm_s,
            crossing_s,
        )

    @property
    def bound_s(self) -> float:
        """Lower bound of the makespan for plans of unsplit tasks."""
        return self.bounds.least_s


def _infeasible(graph: Graph, task: Task, system: System) -> InfeasibleError:
    """Error with the reason why ``task`` runs nowhere, and a remedy."""
    needed = task_bytes(graph, task)
    small = [place for place in system.places if not _holds(system, place, needed)]
    if small:
        memories = ", ".join(
            f"{place} has {format_bytes(_memory_bytes(system, place) or 0)}" for place in small
        )
        return InfeasibleError(
            f"task {task.name!r} ({task.kind}) needs {format_bytes(needed)} for its weights, "
            f"inputs and outputs, but {memories}; add a device with more memory, or take a "
            f"smaller input"
        )
    nowhere = f"task {task.name!r} ({task.kind}) runs on none of {', '.join(system.names)}"
    if task.opaque:
        return InfeasibleError(
            f"{nowhere}, because {task.opaque}: only ONNX Runtime runs such a task; plan for a CPU "
            f"of this machine, such as --devices cpu:0, without a simulated platform"
        )
    return InfeasibleError(f"{nowhere}; add a device that runs it, such as cpu:0")


def _holds(system: System, place: Place, size_bytes: int) -> bool:
    limit = _memory_bytes(system, place)
    return limit is None or size_bytes <= limit


def _memory_bytes(system: System, place: Place) -> int | None:
    return system.at[place].engine.memory_bytes
