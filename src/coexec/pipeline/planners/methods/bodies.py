"""Tasks that some machines compute together, and the work of a share of their rows.

The *tail* of a set of tasks has the tasks that cannot be cut by rows and whose results only tasks
of the tail read, such as the classifier behind a global pool. The leader of the stage computes the
tail alone, from the results that it gathers. All other tasks are the *body*, which the machines
divide by rows. A task of the body that cannot be cut (a gate of squeeze and excitation) is computed
as a whole by each machine.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from coexec.graph.graph import Task
from coexec.graph.region import Region
from coexec.pipeline.planners.methods.rows import ROWS, Range, RowGraph, bits_of

_CLOSE = 1e-3
"""Bisection stops at this relative error of the latest end."""
Seconds = Callable[[int, Range], float]
"""Function from the number of a machine and its rows to the time at which it ends."""


class RowWork(NamedTuple):
    """Computation and data of one share."""

    macs: int
    read_bytes: int
    """Bytes of the stage's inputs that the share reads."""
    made_bytes: int
    """Bytes of the body's outputs that the share makes."""


def tail_of(rows: RowGraph, tasks: int) -> int:
    """The tail of a set of tasks, both as bits."""
    tail = 0
    for task in reversed(list(bits_of(tasks))):
        if not rows.cuttable[task] and not rows.following[task] & tasks & ~tail:
            tail |= 1 << task
    return tail


class StageBody:
    """A set of tasks, prepared to compute the work of shares."""

    def __init__(self, rows: RowGraph, tasks: int) -> None:
        self._rows = rows
        self.tasks = tasks
        """The tasks as bits."""
        self.tail = tail_of(rows, tasks)
        self._order = tuple(reversed(list(bits_of(tasks & ~self.tail))))
        self._works: dict[Range, RowWork] = {}
        self.sinks = self._sinks()
        """Outputs of the body: tensors that its tail, later stages or the caller read."""
        cut = [s for s in self.sinks if rows.cuttable[rows.maker[s]]]
        self.height = max((rows.rows[s] for s in cut), default=1)
        """Number of rows of the tallest output. Shares are ranges of these rows; of every other
        output, a share has the same proportion."""
        self.tail_macs = sum(rows.macs[task] for task in bits_of(self.tail))

    def _sinks(self) -> tuple[int, ...]:
        rows, body = self._rows, self.tasks & ~self.tail
        sinks = []
        for task in bits_of(body):
            for tensor in rows.makes[task]:
                outside = any(not body >> reader & 1 for reader in rows.readers[tensor])
                if outside or tensor in rows.outputs:
                    sinks.append(tensor)
        return tuple(sinks)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of the body if nothing is computed twice."""
        return self.work((0, self.height)).macs

    def rows_of(self, tensor: int, share: Range) -> Range:
        """The rows of an output that belong to a share, which is a range of the tallest output.

        An output that cannot be cut belongs to the share with the first row.
        """
        rows, (a, b) = self._rows.rows[tensor], share
        if not self._rows.cuttable[self._rows.maker[tensor]]:
            return (0, rows) if a == 0 < b else (0, 0)
        return a * rows // self.height, b * rows // self.height

    def work(self, share: Range) -> RowWork:
        """The work of a share; computed once."""
        work = self._works.get(share)
        if work is None:
            work = self._works[share] = self._work(share)
        return work

    def _work(self, share: Range) -> RowWork:
        if share[0] >= share[1]:
            return RowWork(0, 0, 0)
        rows, macs, made_bytes = self._rows, 0, 0
        need: dict[int, Range] = {}
        for tensor in self.sinks:
            a, b = self.rows_of(tensor, share)
            if a < b:
                need[tensor] = (a, b)
                made_bytes += (b - a) * rows.row_bytes[tensor]
        for task in self._order:
            macs += spread(rows, task, need)
        read_bytes = 0
        for tensor, (a, b) in need.items():
            maker = rows.maker[tensor]
            if maker < 0 or not self.tasks >> maker & 1:
                read_bytes += (b - a) * rows.row_bytes[tensor]
        return RowWork(macs, read_bytes, made_bytes)

    def redundant_macs(self, shares: int = 2) -> int:
        """Multiply-accumulates that ``shares`` equal shares compute in addition to those of a
        single machine: PICO's C(M)."""
        works = (self.work(share).macs for share in equal_cuts(self.height, shares))
        return max(0, sum(works) - self.macs)

    def outputs(self, share: Range) -> tuple[tuple[str, Region], ...]:
        """The regions of the body's outputs that belong to a share."""
        graph, regions = self._rows.graph, []
        for tensor in self.sinks:
            a, b = self.rows_of(tensor, share)
            whole = graph.tensors[self._rows.names[tensor]].whole
            if a < b:
                cut = self._rows.cuttable[self._rows.maker[tensor]]
                region = whole.with_axis(ROWS, a, b) if cut else whole
                regions.append((self._rows.names[tensor], region))
        return tuple(regions)

    def graph_tasks(self, *, tail: bool = False) -> list[Task]:
        """The tasks of the body, or of the tail."""
        bits = self.tail if tail else self.tasks & ~self.tail
        return [self._rows.graph.tasks[i] for i in bits_of(bits)]


class Bodies:
    """Cache of `StageBody` by set of tasks."""

    def __init__(self, rows: RowGraph) -> None:
        self.rows = rows
        self._found: dict[int, StageBody] = {}

    def of(self, tasks: int) -> StageBody:
        """The body of a set of tasks, given as bits."""
        body = self._found.get(tasks)
        if body is None:
            body = self._found[tasks] = StageBody(self.rows, tasks)
        return body


def spread(rows: RowGraph, task: int, need: dict[int, Range]) -> int:
    """Add to ``need`` the rows that a task reads, and return the task's multiply-accumulates.

    The task computes the rows of its outputs that ``need`` has. Call this for tasks from the last
    to the first, so that ``need`` has the rows of all readers of a task before its own call.
    """
    made = rows.makes[task]
    main = made[0]
    a, b = need.get(main, (0, 0))
    if a >= b and not any(tensor in need for tensor in made):
        return 0
    height = rows.rows[main]
    if not rows.cuttable[task]:
        a, b = 0, height
    whole = (a, b) == (0, height)
    for tensor, first, stop in rows.reads[task]:
        if whole or first is None or stop is None:
            low, high = 0, rows.rows[tensor]
        else:
            low, high = first[a], stop[b - 1]
        if tensor in need:
            old_low, old_high = need[tensor]
            low, high = min(low, old_low), max(high, old_high)
        need[tensor] = (low, high)
    return rows.macs_of(task, b - a)


def equal_cuts(height: int, count: int) -> Sequence[Range]:
    """``count`` shares with numbers of rows that are as equal as possible."""
    edges = [k * height // count for k in range(count + 1)]
    return tuple(pairwise(edges))


def balanced(body: StageBody, weights: Sequence[float], seconds: Seconds) -> tuple[Range, ...]:
    """The rows of each machine, from the top, with the earliest possible latest end for machines in
    this order.

    The latest end is found by bisection: for a candidate, each machine takes as many rows as it can
    compute until then. A machine for which a single row is too much gets none. The paper uses
    divide and conquer; both methods find the rows with which all machines finish together.

    Args:
        weights: the machines' capacities; the first guess is in proportion to them.
        seconds: a function that grows with the rows.
    """
    best = in_proportion(body.height, weights)
    high = max(seconds(k, share) for k, share in enumerate(best))
    low = 0.0
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        shares = _until(body.height, len(weights), middle, seconds)
        if shares is None:
            low = middle
        else:
            best, high = shares, max(seconds(k, share) for k, share in enumerate(shares))
    return best


def in_proportion(height: int, weights: Sequence[float]) -> tuple[Range, ...]:
    """The rows of each machine, in proportion to ``weights``."""
    total, reached, edges = sum(weights), 0.0, [0]
    for weight in weights:
        reached += weight
        edges.append(round(height * reached / total))
    return tuple((edges[k], edges[k + 1]) for k in range(len(weights)))


def _until(height: int, count: int, end_s: float, seconds: Seconds) -> tuple[Range, ...] | None:
    """The rows that each machine computes until ``end_s``; None if rows are left."""
    shares, start = list[Range](), 0
    for k in range(count):
        stop, above = start, height + 1  # stop fits, above does not
        while above - stop > 1:
            middle = (stop + above) // 2
            if seconds(k, (start, middle)) <= end_s:
                stop = middle
            else:
                above = middle
        if stop == start and seconds(k, (start, start)) > end_s:
            return None  # the tail alone takes the leader longer
        shares.append((start, stop))
        start = stop
    return tuple(shares) if start == height else None
