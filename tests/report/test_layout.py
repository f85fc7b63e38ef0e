"""Positions of tasks in a drawing."""

from itertools import pairwise

from hypothesis import given

from coexec.graph.graph import Graph
from coexec.report.layout import positions
from tests.helpers.graphs import graphs


@given(graphs(max_tasks=12))
def test_a_task_is_below_all_that_it_reads(graph: Graph) -> None:
    found = positions(graph)
    assert found.keys() == graph.task.keys()
    for task in graph.tasks:
        assert all(found[p.name].row < found[task.name].row for p in graph.predecessors[task.name])


@given(graphs(max_tasks=12))
def test_tasks_of_a_row_do_not_overlap(graph: Graph) -> None:
    columns: dict[int, list[float]] = {}
    for row, column in positions(graph).values():
        columns.setdefault(row, []).append(column)
    for row in columns.values():
        assert all(b - a > 0.999 for a, b in pairwise(sorted(row)))
