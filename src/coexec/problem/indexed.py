"""A graph in numbers: tasks and tensors are indices, tasks in topological order."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from coexec.graph.graph import Graph
from coexec.problem.bounds import Flags, precedence


@dataclass(frozen=True)
class IndexedGraph:
    """Dependencies between tasks, without costs."""

    graph: Graph

    @property
    def tasks(self) -> range:
        """All tasks in topological order."""
        return range(len(self.graph.tasks))

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors that one task makes and another one reads. Only these ever move."""
        return tuple(self._tensor)

    @cached_property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Sizes of these tensors."""
        return tuple(self.graph.tensors[name].size_bytes for name in self._tensor)

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """The task that makes a tensor, by tensor."""
        number = {task.name: i for i, task in enumerate(self.graph.tasks)}
        return tuple(number[self.graph.producer[name].name] for name in self._tensor)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Tensors of other tasks that a task reads, by task. It reads all of each, as it is not
        split."""
        numbers = self._tensor
        return tuple(
            tuple(dict.fromkeys(numbers[name] for name in task.inputs if name in numbers))
            for task in self.graph.tasks
        )

    @cached_property
    def read_by(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Pairs (tensor, reader) of the tensors that a task makes, by task: ordered by reader, then
        as the reader lists its tensors."""
        pairs: list[list[tuple[int, int]]] = [[] for _ in self.tasks]
        for reader, tensors in enumerate(self.reads):
            for tensor in tensors:
                pairs[self.maker[tensor]].append((tensor, reader))
        return tuple(map(tuple, pairs))

    @cached_property
    def edges(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """By (task, successor), the tensors that go from one to the other."""
        tensors_by_edge: dict[tuple[int, int], list[int]] = {}
        for reader, tensors in enumerate(self.reads):
            for tensor in tensors:
                tensors_by_edge.setdefault((self.maker[tensor], reader), []).append(tensor)
        return {edge: tuple(tensors) for edge, tensors in tensors_by_edge.items()}

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """By task, the tasks whose tensors it reads; each once."""
        maker = self.maker
        return tuple(tuple(dict.fromkeys(maker[t] for t in tensors)) for tensors in self.reads)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """By task, the tasks that read its tensors; each once."""
        readers: list[list[int]] = [[] for _ in self.tasks]
        for source, reader in self.edges:
            readers[source].append(reader)
        return tuple(map(tuple, readers))

    @cached_property
    def precedes(self) -> Flags:
        """Whether there is a path from one task (row) to another (column)."""
        return precedence(self.predecessors)

    @cached_property
    def _tensor(self) -> Mapping[str, int]:
        read = (n for t in self.graph.tasks for n in t.inputs if n in self.graph.producer)
        return {name: i for i, name in enumerate(dict.fromkeys(read))}
