"""Positions for drawing a graph: a row for each depth, and neighbours near each other; and the rows
that repeat, which are drawn as one.

Source of the method: Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical
System Structures", IEEE Transactions on Systems, Man, and Cybernetics, 1981; its two first steps,
layers by the longest path and ordering by barycentres, in one pass from the inputs to the outputs.
"""

import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from coexec.graph.graph import Graph
from coexec.report.contents import RepeatedRows

_LEAST_SAVED = 3
"""Rows that a repeat must save: a drawing is hardly shorter by fewer."""
_LEAST_COUNT = 3
"""A long sequence that occurs twice is no simpler to read as one box."""
_LONGEST = 100
"""Rows of a sequence. The block of a network that is repeated has fewer."""


class Position(NamedTuple):
    """Where a task is drawn."""

    row: int
    """Length of the longest path to it, in tasks."""
    column: float
    """Distance from the middle of the drawing, in tasks; no two tasks of a row are nearer than
    1."""


def repeats(rows: Sequence[Hashable]) -> Iterator[RepeatedRows]:
    """Repeats that do not overlap, from the first row on; of those that begin with a row, the one
    with the largest count.

    Args:
        rows: the operators of each row, in any form that can be compared.
    """
    row = 0
    while row < len(rows):
        longest = min(_LONGEST, (len(rows) - row) // _LEAST_COUNT)
        found = (RepeatedRows(row, n, _count(rows, row, n)) for n in range(1, longest + 1))
        worth = (r for r in found if r.saved >= _LEAST_SAVED and r.count >= _LEAST_COUNT)
        best = max(worth, key=lambda each: (each.count, each.saved), default=None)
        if best is not None:
            yield best
        row += 1 if best is None else best.length * best.count


def _count(rows: Sequence[Hashable], row: int, length: int) -> int:
    """How often the sequence of ``length`` rows occurs from ``row`` on."""
    same = 0
    while row + length + same < len(rows) and rows[row + same] == rows[row + length + same]:
        same += 1
    return 1 + same // length


def positions(graph: Graph) -> Mapping[str, Position]:
    """The position of each task, by its name. Each task is in a lower row than what it reads."""
    row_of: dict[str, int] = {}
    rows: dict[int, list[str]] = {}
    for task in graph.tasks:
        before = graph.predecessors[task.name]
        row = row_of[task.name] = 1 + max((row_of[p.name] for p in before), default=-1)
        rows.setdefault(row, []).append(task.name)
    column_of: dict[str, float] = {}
    for _, names in sorted(rows.items()):
        wanted = {name: _barycentre(name, graph, column_of) for name in names}
        ordered = sorted(names, key=wanted.__getitem__)
        middle = (len(ordered) - 1) / 2
        for index, name in enumerate(ordered):
            column_of[name] = index - middle
        if len(ordered) == 1:  # a chain stays straight below a branch
            column_of[ordered[0]] = wanted[ordered[0]]
    return {name: Position(row_of[name], column_of[name]) for name in row_of}


def _barycentre(name: str, graph: Graph, column_of: Mapping[str, float]) -> float:
    columns = [column_of[p.name] for p in graph.predecessors[name]]
    return statistics.fmean(columns) if columns else 0.0
