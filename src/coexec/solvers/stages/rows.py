"""A graph as numbers, cut by rows: fast enough for searches, equal to `coexec.ir.strip`.

Rows are ranges of axis 2 of tensors of rank 4 or more; all other tensors are one row. Each task
that can be cut by rows has tables of the first and last row of each input that one row needs,
made by the rules of its operators. A range needs what its first row needs first to what its last
row needs last.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from coexec.ir.graph import Graph, Task, Tensor
from coexec.ir.parts import GraphParts, TaskParts

__all__ = ["ROWS", "Range", "RowGraph", "RowRead", "bits_of", "turned"]

ROWS = 2
"""The axis."""
Range = tuple[int, int]
"""First row, and one behind the last."""
_Tables = tuple[tuple[int, ...], tuple[int, ...]]


class RowRead(NamedTuple):
    """How a task reads a tensor: the rows that each of its own rows needs."""

    tensor: int
    first: tuple[int, ...] | None
    """None: all rows, whatever is computed."""
    stop: tuple[int, ...] | None


class RowGraph:
    """Tasks and tensors are indices, tasks in topological order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        names = [n for n, t in graph.tensors.items() if not t.constant]
        self.tensor = {name: i for i, name in enumerate(names)}
        self.names = tuple(names)
        tensors = [graph.tensors[name] for name in names]
        self.rows = tuple(t.shape[ROWS] if _is_map(t) else 1 for t in tensors)
        """By tensor."""
        self.row_bytes = tuple(
            t.size_bytes // r if r else 0 for t, r in zip(tensors, self.rows, strict=True)
        )
        parts = GraphParts(graph)
        tables = [_tables(graph, task, parts.of(task)) for task in graph.tasks]
        self.cuttable = tuple(found is not None for found in tables)
        """By task, whether its output can be cut by rows."""
        self.reads = tuple(
            tuple(RowRead(self.tensor[name], *(found[k] if found else (None, None)))
                  for k, name in enumerate(task.inputs))
            for task, found in zip(graph.tasks, tables, strict=True)
        )  # fmt: skip
        self.makes = tuple(
            tuple(self.tensor[n] for n in t.outputs if n in self.tensor) for t in graph.tasks
        )
        """By task, its outputs; the main one first."""
        self.macs = tuple(task.macs for task in graph.tasks)
        self.inputs = tuple(self.tensor[name] for name in graph.inputs)
        self.outputs = frozenset(
            self.tensor[name] for name in graph.outputs if name not in graph.inputs
        )

    @cached_property
    def maker(self) -> tuple[int, ...]:
        """By tensor, its task; -1 for inputs of the model."""
        found = [-1] * len(self.names)
        for task, made in enumerate(self.makes):
            for tensor in made:
                found[tensor] = task
        return tuple(found)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """By tensor, the tasks that read it."""
        found: list[list[int]] = [[] for _ in self.names]
        for task, reads in enumerate(self.reads):
            for read in reads:
                found[read.tensor].append(task)
        return tuple(map(tuple, found))

    @cached_property
    def before(self) -> tuple[int, ...]:
        """By task, the tasks that it reads from, as bits."""
        found = []
        for reads in self.reads:
            makers = {self.maker[read.tensor] for read in reads} - {-1}
            found.append(sum(1 << maker for maker in makers))
        return tuple(found)

    @cached_property
    def following(self) -> tuple[int, ...]:
        """By task, the tasks that read from it, as bits."""
        return turned(self.before)

    @property
    def spatial(self) -> bool:
        """Whether any task can be cut by rows."""
        return any(self.cuttable)

    def macs_of(self, task: int, count: int) -> int:
        """Multiply-accumulates of so many rows of a task, rounded up."""
        rows = self.rows[self.makes[task][0]]
        return -(-self.macs[task] * count // rows) if rows else self.macs[task]

    def handed_on(self, done: int) -> tuple[int, ...]:
        """Tensors that a later stage needs once the tasks in the bits ``done`` have run: inputs of
        the model and results that others read, or that are outputs of the model."""
        return tuple(
            tensor for tensor, maker in enumerate(self.maker)
            if (maker < 0 or done >> maker & 1)
            and ((tensor in self.outputs and maker >= 0)
                 or any(not done >> reader & 1 for reader in self.readers[tensor]))
        )  # fmt: skip


def bits_of(bits: int) -> Iterable[int]:
    """The numbers of the bits that are set, rising."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def turned(before: Sequence[int]) -> tuple[int, ...]:
    """From what each reads from to what reads from each; both as bits."""
    found = [0] * len(before)
    for reader, bits in enumerate(before):
        for maker in bits_of(bits):
            found[maker] |= 1 << reader
    return tuple(found)


def _is_map(tensor: Tensor) -> bool:
    return len(tensor.shape) > ROWS + 1


def _tables(
    graph: Graph, task: Task, parts: TaskParts
) -> Sequence[_Tables | tuple[None, None]] | None:
    """By input, the rows that each row needs; None if the task cannot be cut by rows alone."""
    output = graph.output_of(task)
    if not _is_map(output) or len(task.outputs) > 1 or ROWS not in parts.axes:
        return None
    found = []
    for row in range(output.shape[ROWS]):
        regions = parts.needed(output.whole.with_axis(ROWS, row, row + 1))
        if regions is None:
            return None
        found.append(regions)
    tables: list[_Tables | tuple[None, None]] = []
    for k, name in enumerate(task.inputs):
        tensor, read = graph.tensors[name], [row[k] for row in found]
        if all(region == tensor.whole for region in read):
            tables.append((None, None))
            continue
        if not _is_map(tensor):
            return None
        first = tuple(region.start[ROWS] for region in read)
        stop = tuple(region.stop[ROWS] for region in read)
        alone = all(r.with_axis(ROWS, 0, tensor.shape[ROWS]) == tensor.whole for r in read)
        full = all(a < b for a, b in zip(first, stop, strict=True))
        rising = all(a <= b for marks in (first, stop) for a, b in pairwise(marks))
        if not (alone and full and rising):
            return None
        tables.append((first, stop))
    return tables
