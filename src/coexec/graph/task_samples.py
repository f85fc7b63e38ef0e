"""Parts of tasks, each computed once.

Planners need the same parts many times, and networks repeat their tasks.
"""

from collections.abc import Mapping
from functools import cached_property

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Task
from coexec.graph.receptive import ReceptiveField, receptive_field, splittable_axes
from coexec.graph.region import Region


class TaskParts:
    """The parts of a task, and thus of all tasks that are alike."""

    def __init__(self, graph: Graph, task: Task) -> None:
        self.graph, self.task = graph, task
        self.whole = graph.output_of(task).whole
        self._fields: dict[Region, ReceptiveField | None] = {}
        self._read_bytes: dict[Region, int | None] = {}

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes along which any cut is exact."""
        return splittable_axes(self.graph, self.task)

    def receptive_field(self, region: Region) -> ReceptiveField | None:
        """The receptive field of ``region``; None if it cannot be computed by itself."""
        if region not in self._fields:
            try:
                field = receptive_field(self.graph, self.task, region, self.axes)
            except PlanError:
                field = None
            self._fields[region] = field
        return self._fields[region]

    def needed(self, region: Region) -> tuple[Region, ...] | None:
        """For each input of the task, the box that ``region`` is computed from; None if ``region``
        cannot be computed by itself."""
        field = self.receptive_field(region)
        return None if field is None else field.inputs

    def read_bytes(self, region: Region) -> int | None:
        """Bytes of the inputs and weights that ``region`` is computed from, each counted once; None
        if ``region`` is empty or cannot be computed by itself."""
        if region not in self._read_bytes:
            field = self.receptive_field(region)
            has_operators = field is not None and field.operators
            self._read_bytes[region] = self._bytes_of(field) if field and has_operators else None
        return self._read_bytes[region]

    def _bytes_of(self, field: ReceptiveField) -> int:
        tensors, made = self.graph.tensors, {n for op in self.task.operators for n in op.outputs}
        sizes: dict[str, int] = {}
        for op, cut in zip(self.task.operators, field.operators, strict=True):
            for name, read in zip(op.inputs, cut.inputs, strict=True):
                if name in tensors and name not in made and read is not None:
                    size_bytes = read.size * tensors[name].item_bytes
                    sizes[name] = max(sizes.get(name, 0), size_bytes)
        return sum(sizes.values())


class GraphParts:
    """The parts of all tasks of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._of_text: dict[str, TaskParts] = {}
        self._of_task: dict[str, TaskParts] = {}

    def of(self, task: Task) -> TaskParts:
        """The parts of ``task``: the same object for tasks that differ only in names."""
        if task.name not in self._of_task:
            text = task.name if task.opaque else _text(task, self.graph)
            if text not in self._of_text:
                self._of_text[text] = TaskParts(self.graph, task)
            self._of_task[task.name] = self._of_text[text]
        return self._of_task[task.name]


def _text(task: Task, graph: Graph) -> str:
    """All properties of a task that rules use, with numbers in place of names.

    `Task.signature` does not suffice: it leaves out which of the inner values an operator reads.
    """
    numbers: dict[str, int] = {}

    def numbered(names: tuple[str, ...]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) if name else -1 for name in names]

    rows = [
        (
            op.domain,
            op.op_type,
            op.version,
            _sorted(op.attributes),
            sorted(op.constants.items()),
            numbered(op.inputs),
            numbered(op.outputs),
        )
        for op in task.operators
    ]
    ends = numbered(task.inputs), numbered(task.outputs)
    tensors = [graph.tensors.get(name) for name in numbers]
    shapes = [None if t is None else (t.shape, t.dtype, t.constant, t.opaque) for t in tensors]
    return repr((rows, ends, shapes))


def _sorted(attributes: Mapping[str, object]) -> list[tuple[str, object]]:
    return sorted(attributes.items(), key=lambda item: item[0])
