"""What is to be planned, in numbers, and what no plan can beat.

Tasks, tensors and devices are indices here. Tasks are numbered in topological order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np

from coexec.costs.base import CostModel
from coexec.errors import InfeasibleError
from coexec.ir.graph import Graph, Task
from coexec.plans.plan import task_bytes
from coexec.problem.bounds import Chain, Flags, Floats, chained, precedence, shared_out
from coexec.system.hardware import Link, Place, System
from coexec.units import format_bytes

__all__ = ["Matrix", "Problem"]

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Problem:
    """Place each task of ``graph`` on a device of ``system`` and order them there.

    Raises:
        InfeasibleError: some task runs on no device.
    """

    graph: Graph
    cost: CostModel
    system: System

    def __post_init__(self) -> None:
        for task, row in zip(self.graph.tasks, self.latency_s, strict=True):
            if min(row) == math.inf:
                self._refuse_too_large(task)
                raise InfeasibleError(
                    f"task {task.name!r} ({task.kind}) runs on none of "
                    f"{', '.join(self.system.names)}; add a device that runs it, such as cpu:0"
                )

    def _refuse_too_large(self, task: Task) -> None:
        needed = task_bytes(self.graph, task)
        small = [p for p in self.places if not _holds(self.system, p, needed)]
        if small:
            memories = ", ".join(
                f"{p} has {format_bytes(_memory_bytes(self.system, p) or 0)}" for p in small
            )
            raise InfeasibleError(
                f"task {task.name!r} ({task.kind}) needs {format_bytes(needed)} for its weights, "
                f"inputs and outputs, but {memories}; add a device with more memory, or take a "
                f"smaller input"
            )

    @property
    def tasks(self) -> range:
        """All tasks in topological order."""
        return range(len(self.graph.tasks))

    @property
    def devices(self) -> range:
        return range(len(self.system.devices))

    @property
    def places(self) -> tuple[Place, ...]:
        """By device, the place that plans use of it: its first engine."""
        return self.system.places

    @cached_property
    def latency_s(self) -> Matrix:
        """By task, by device: seconds of the whole task; infinite where it cannot run.

        A device whose memory is too small for a task cannot run it.
        """
        graph, piece_s = self.graph, self.cost.piece_s
        return tuple(
            tuple(
                piece_s(graph, task, graph.output_of(task).whole, place)
                if _holds(self.system, place, needed)
                else math.inf
                for place in self.places
            )
            for task, needed in ((task, task_bytes(graph, task)) for task in graph.tasks)
        )

    @cached_property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Sizes of the tensors that one task makes and another reads; these alone ever move."""
        return tuple(self.graph.tensors[name].size_bytes for name in self._tensor)

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """By tensor, the task that makes it."""
        return tuple(self._number[self.graph.producer[name].name] for name in self._tensor)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """By task, the tensors of other tasks that it reads, all of each: it is not split."""
        numbers = self._tensor
        return tuple(
            tuple(dict.fromkeys(numbers[name] for name in task.inputs if name in numbers))
            for task in self.graph.tasks
        )

    @cached_property
    def edges(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """By (task, successor), the tensors that go from one to the other."""
        found: dict[tuple[int, int], list[int]] = {}
        for reader, tensors in enumerate(self.reads):
            for tensor in tensors:
                found.setdefault((self.maker[tensor], reader), []).append(tensor)
        return {edge: tuple(tensors) for edge, tensors in found.items()}

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        maker = self.maker
        return tuple(tuple(dict.fromkeys(maker[t] for t in tensors)) for tensors in self.reads)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.tasks]
        for source, reader in self.edges:
            found[source].append(reader)
        return tuple(map(tuple, found))

    @cached_property
    def links(self) -> tuple[tuple[Link, ...], ...]:
        """By source, by target device."""
        return tuple(tuple(self.system.link(a, b) for b in self.places) for a in self.places)

    @cached_property
    def copy_s(self) -> tuple[Matrix, ...]:
        """By tensor, by source and target device: seconds that moving it occupies the link."""
        of_size = {size_bytes: self._copies_s(size_bytes) for size_bytes in set(self.tensor_bytes)}
        return tuple(of_size[size_bytes] for size_bytes in self.tensor_bytes)

    def comm_s(self, source: int, reader: int, a: int, b: int) -> float:
        """Seconds from the end of ``source`` on ``a`` until ``reader`` has its data on ``b``.

        One latency for the edge and a copy for each of its tensors; none inside one device.
        """
        if a == b:
            return 0.0
        copies_s = sum(self.copy_s[tensor][a][b] for tensor in self.edges[source, reader])
        return self.links[a][b].latency_s + copies_s

    @cached_property
    def upward_rank_s(self) -> tuple[float, ...]:
        """By task, the longest way from its start to the end of the graph, at mean costs.

        Means are over the devices that run a task, and over all pairs of two different devices.
        """
        pairs = list(permutations(self.devices, 2))
        ranks_s = [0.0] * len(self.tasks)
        for task in reversed(self.tasks):
            rest_s = 0.0
            for reader in self.successors[task]:
                comm_s = sum(self.comm_s(task, reader, a, b) for a, b in pairs)
                rest_s = max(rest_s, comm_s / max(1, len(pairs)) + ranks_s[reader])
            runs_s = [s for s in self.latency_s[task] if s < math.inf]
            ranks_s[task] = sum(runs_s) / len(runs_s) + rest_s
        return tuple(ranks_s)

    @cached_property
    def bound_s(self) -> float:
        """No plan of unsplit tasks is faster: the longest of three ways to see the work."""
        return max(self.critical_path_s, self.divisible_load_s, self.chained_load_s)

    @cached_property
    def critical_path_s(self) -> float:
        """The longest path when each task on it runs where that suits the path best.

        Data that crosses devices pays for it. A program's launch is charged once, as it would be
        if the path were a single segment, and no more of it than the path's first task takes.
        """
        ends_s: list[list[float]] = []
        for task in self.tasks:
            ends_s.append([
                self.net_s[task][b] + max([
                    min(self.launches_s[b], self.latency_s[task][b]),
                    *(
                        min(ends_s[p][a] + self.comm_s(p, task, a, b) for a in self.devices)
                        for p in self.predecessors[task]
                    ),
                ])
                for b in self.devices
            ])  # fmt: skip
        return max((min(row) for row in ends_s), default=0.0)

    @property
    def divisible_load_s(self) -> float:
        """All work shared out over all devices, as if tasks could be cut at will."""
        return self._shared_out[0]

    @property
    def chained_load_s(self) -> float:
        """The longest chain of tasks that each wait for all the work since the one before."""
        return self.chain.total_s

    @cached_property
    def chain(self) -> Chain:
        """How early each task can start, and how much must follow it, for the work alone."""
        uniform = np.full(len(self.devices), 1 / len(self.devices))
        pairs = permutations(self.devices, 2)
        crossing_s = min((self.links[a][b].latency_s for a, b in pairs), default=0.0)
        return chained(self._net, self.precedes, [self._shared_out[1], uniform], crossing_s)

    @cached_property
    def precedes(self) -> Flags:
        """Whether there is a path from one task (row) to another (column)."""
        return precedence(self.predecessors)

    @cached_property
    def _net(self) -> Floats:
        return np.array(self.net_s, dtype=float).reshape(-1, len(self.devices))

    @cached_property
    def _shared_out(self) -> tuple[float, Floats]:
        return shared_out(self._net)

    @cached_property
    def net_s(self) -> Matrix:
        """By task, by device: inside a segment a task costs one launch less than on its own."""
        return tuple(
            tuple(max(0.0, s - launch_s) for s, launch_s in zip(row, self.launches_s, strict=True))
            for row in self.latency_s
        )

    @cached_property
    def launches_s(self) -> tuple[float, ...]:
        """By device, what starting a segment takes."""
        return tuple(self.cost.launch_s(place) for place in self.places)

    @cached_property
    def _number(self) -> Mapping[str, int]:
        return {task.name: i for i, task in enumerate(self.graph.tasks)}

    @cached_property
    def _tensor(self) -> Mapping[str, int]:
        read = (n for t in self.graph.tasks for n in t.inputs if n in self.graph.producer)
        return {name: i for i, name in enumerate(dict.fromkeys(read))}

    def _copies_s(self, size_bytes: int) -> Matrix:
        return tuple(
            tuple(
                0.0 if a == b else self.cost.transfer_s(size_bytes, link)
                for b, link in enumerate(row)
            )
            for a, row in enumerate(self.links)
        )


def _holds(system: System, place: Place, size_bytes: int) -> bool:
    limit = _memory_bytes(system, place)
    return limit is None or size_bytes <= limit


def _memory_bytes(system: System, place: Place) -> int | None:
    return system.device[place.device].engine(place.engine).memory_bytes
