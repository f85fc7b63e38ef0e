"""What regions of a task need of its inputs, remembered for all tasks that are alike."""

from collections.abc import Mapping

from coexec.errors import PlanError
from coexec.ir.graph import Graph, Task
from coexec.ir.receptive import needed_inputs
from coexec.ir.region import Region

__all__ = ["Needs"]


class Needs:
    """`needed_inputs` of a graph. Networks repeat their tasks, and searches their questions."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers: dict[str, int] = {}
        self._forms: dict[str, int] = {}
        self._needed: dict[tuple[int, Region], tuple[Region, ...] | None] = {}

    def of(self, task: Task, region: Region) -> tuple[Region, ...] | None:
        """By input of a task, the box that a region of its main output is computed from; None if
        the region cannot be computed by itself."""
        key = self.form(task), region
        if key not in self._needed:
            try:
                needed = needed_inputs(self._graph, task, region)
                self._needed[key] = tuple(needed[name] for name in task.inputs)
            except PlanError:
                self._needed[key] = None
        return self._needed[key]

    def form(self, task: Task) -> int:
        """A number that is equal for tasks in which nothing differs but names."""
        if task.name not in self._forms:
            text = task.name if task.opaque else _text(task, self._graph)
            self._forms[task.name] = self._numbers.setdefault(text, len(self._numbers))
        return self._forms[task.name]


def _text(task: Task, graph: Graph) -> str:
    """All that rules see of a task, with numbers in place of names.

    `Task.signature` would not do: it leaves out which of the values inside an operator reads.
    """
    numbers: dict[str, int] = {}

    def numbered(names: tuple[str, ...]) -> list[int]:
        return [numbers.setdefault(name, len(numbers)) if name else -1 for name in names]

    rows = [
        (op.domain, op.op_type, op.version, _sorted(op.attributes), sorted(op.constants.items()),
         numbered(op.inputs), numbered(op.outputs))
        for op in task.operators
    ]  # fmt: skip
    ends = numbered(task.inputs), numbered(task.outputs)
    tensors = [graph.tensors.get(name) for name in numbers]
    shapes = [None if t is None else (t.shape, t.dtype, t.constant, t.opaque) for t in tensors]
    return repr((rows, ends, shapes))


def _sorted(attributes: Mapping[str, object]) -> list[tuple[str, object]]:
    return sorted(attributes.items(), key=lambda item: item[0])
