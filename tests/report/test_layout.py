"""Positions of tasks in a drawing."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.graph.graph import Graph
from coexec.report.layout import positions, repeats
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


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("sabababab", [(1, 2, 4)]),
        ("s" + 12 * "qkvo+f" + "h", [(1, 6, 12)]),
        ("abababdabababab", [(0, 2, 3), (7, 2, 4)]),
        ("aab", []),
        ("abcdeabcde", []),
    ],
)
def test_rows_that_repeat_are_one_box(rows: str, expected: list[tuple[int, int, int]]) -> None:
    assert [(each.row, each.length, each.count) for each in repeats(rows)] == expected


@given(st.text("ab", max_size=40))
def test_a_repeat_is_a_sequence_times_its_count(rows: str) -> None:
    end = 0
    for each in repeats(rows):
        assert each.row >= end
        end = each.row + each.length * each.count
        assert rows[each.row : end] == each.count * rows[each.row : each.row + each.length]
