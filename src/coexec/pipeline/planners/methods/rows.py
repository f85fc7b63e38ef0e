"""A graph as numbers, cut by rows: fast enough for searches, as exact as `coexec.pipeline.strip`.

Rows are positions on axis 2 of tensors of rank 4 or more; every other tensor counts as one row.
Each task that can be cut by rows has tables: for each row of its output, the first and the last row
of each input in the receptive field, computed by the rules of its operators. A range of rows needs
all input rows from the first one of its first row to the last one of its last row.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from coexec.graph.graph import Graph, Task, Tensor
from coexec.graph.task_samples import GraphParts, TaskParts

ROWS = 2
"""The axis of the rows."""
Range = tuple[int, int]
"""The first row, and the row behind the last."""
_Tables = tuple[tuple[int, ...], tuple[int, ...]]


class RowRead(NamedTuple):
    """A tensor that a task reads: for each row of the task's output, the rows that it needs."""

    tensor: int
    first: tuple[int, ...] | None
    """First needed row, by row of the output; None: all rows are needed for any output row."""
    stop: tuple[int, ...] | None


class RowGraph:
    """A graph in which tasks and tensors are indices; tasks are in topological order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        names = [n for n, t in graph.tensors.items() if not t.constant]
        self.tensor = {name: i for i, name in enumerate(names)}
        self.names = tuple(names)
        tensors = [graph.tensors[name] for name in names]
        self.rows = tuple(t.shape[ROWS] if _is_map(t) else 1 for t in tensors)
        """By tensor, its number of rows."""
        self.row_bytes = tuple(
            t.size_bytes // r if r else 0 for t, r in zip(tensors, self.rows, strict=True)
        )
        parts = GraphParts(graph)
        tables = [_tables(graph, task, parts.of(task)) for task in graph.tasks]
        self.cuttable = tuple(row_tables is not None for row_tables in tables)
        """By task, whether its output can be cut by rows."""
        self.reads = tuple(
            tuple(
                RowRead(self.tensor[name], *(row_tables[k] if row_tables else (None, None)))
                for k, name in enumerate(task.inputs)
            )
            for task, row_tables in zip(graph.tasks, tables, strict=True)
        )
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
        """The task that makes each tensor; -1 for inputs of the model."""
        makers = [-1] * len(self.names)
        for task, made in enumerate(self.makes):
            for tensor in made:
                makers[tensor] = task
        return tuple(makers)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """By tensor, the tasks that read it."""
        readers_of: list[list[int]] = [[] for _ in self.names]
        for task, reads in enumerate(self.reads):
            for read in reads:
                readers_of[read.tensor].append(task)
        return tuple(map(tuple, readers_of))

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The predecessors of each task, as bits."""
        predecessors = []
        for reads in self.reads:
            makers = {self.maker[read.tensor] for read in reads} - {-1}
            predecessors.append(sum(1 << maker for maker in makers))
        return tuple(predecessors)

    @cached_property
    def following(self) -> tuple[int, ...]:
        """The successors of each task, as bits."""
        return turned(self.before)

    @property
    def spatial(self) -> bool:
        """Whether any task can be cut by rows."""
        return any(self.cuttable)

    def macs_of(self, task: int, count: int) -> int:
        """Multiply-accumulates of ``count`` rows of a task, rounded up."""
        rows = self.rows[self.makes[task][0]]
        return -(-self.macs[task] * count // rows) if rows else self.macs[task]

    def handed_on(self, done: int) -> tuple[int, ...]:
        """Tensors that later stages need after the tasks ``done`` (as bits) have run: inputs of the
        model and results that later tasks read, and outputs of the model."""
        return tuple(
            tensor
            for tensor, maker in enumerate(self.maker)
            if (maker < 0 or done >> maker & 1)
            and (
                (tensor in self.outputs and maker >= 0)
                or any(not done >> reader & 1 for reader in self.readers[tensor])
            )
        )


def bits_of(bits: int) -> Iterable[int]:
    """The numbers of the set bits, rising."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def turned(before: Sequence[int]) -> tuple[int, ...]:
    """The successors of each task from the predecessors of each task; both as bits."""
    successors = [0] * len(before)
    for reader, bits in enumerate(before):
        for maker in bits_of(bits):
            successors[maker] |= 1 << reader
    return tuple(successors)


def _is_map(tensor: Tensor) -> bool:
    return len(tensor.shape) > ROWS + 1


def _tables(
    graph: Graph, task: Task, parts: TaskParts
) -> Sequence[_Tables | tuple[None, None]] | None:
    """For each input, the rows that an output row needs; None if the task cannot be cut by rows."""
    output = graph.output_of(task)
    if not _is_map(output) or len(task.outputs) > 1 or ROWS not in parts.axes:
        return None
    regions_of_row = []
    for row in range(output.shape[ROWS]):
        regions = parts.needed(output.whole.with_axis(ROWS, row, row + 1))
        if regions is None:
            return None
        regions_of_row.append(regions)
    tables: list[_Tables | tuple[None, None]] = []
    for k, name in enumerate(task.inputs):
        tensor, read = graph.tensors[name], [row[k] for row in regions_of_row]
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
