"""Parts of tasks that are remembered are those that the rules name."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Task
from coexec.graph.receptive import needed_inputs, operator_regions
from coexec.graph.region import Region
from coexec.graph.task_samples import GraphParts
from tests.helpers.network_cases import networks, pieces_of

quick = settings(max_examples=30, deadline=None, derandomize=True, database=None)


def plain_needs(graph: Graph, task: Task, region: Region) -> tuple[Region, ...] | None:
    with suppress(PlanError):
        needed = needed_inputs(graph, task, region)
        return tuple(needed[name] for name in task.inputs)
    return None


@quick
@given(st.data())
def test_parts_need_what_the_rules_say(data: st.DataObject) -> None:
    graph = data.draw(networks()).graph
    parts = GraphParts(graph)
    for piece in data.draw(pieces_of(graph)):
        task = graph.task[piece.task]
        empty = Region(piece.region.start, piece.region.start)
        for region in (piece.region, graph.output_of(task).whole, empty):
            for _ in range(2):
                assert parts.of(task).needed(region) == plain_needs(graph, task, region)
        field = parts.of(task).receptive_field(piece.region)
        if field is not None and field.operators:
            assert field.operators == operator_regions(graph, task, piece.region)


@quick
@given(st.data())
def test_parts_of_tasks_that_are_alike_are_alike(data: st.DataObject) -> None:
    graph = data.draw(networks()).graph
    parts = GraphParts(graph)
    for task in graph.tasks:
        alike = parts.of(task).task
        assert (alike.kind, len(alike.inputs)) == (task.kind, len(task.inputs))
        assert graph.output_of(alike).shape == graph.output_of(task).shape
        assert parts.of(task) is parts.of(alike)
