"""Costs that are looked up: what a launch contains."""

import pytest

from coexec.costs.table import CostTable, LayoutChange
from coexec.graph.region import Region
from coexec.hardware.hardware import Link, Place
from coexec.timing.clock import launched_s
from tests.helpers.graphs import make_graph

HOST, OTHER = Place("cpu:0", "onnxruntime"), Place("cpu:1", "cpp")
GRAPH = make_graph({"a": [], "b": ["a"]}, {"a": 8, "b": 8})
TABLE = CostTable(
    {HOST: {"a": 5.0, "b": 7.0}, OTHER: {"a": 5.0, "b": 7.0}},
    {HOST: 1.0, OTHER: 1.0},
)


def seconds(name: str, place: Place, items: int | None = None) -> float:
    task = GRAPH.task[name]
    whole = GRAPH.output_of(task).whole
    region = whole if items is None else Region(whole.start, (items, *whole.stop[1:]))
    return TABLE.piece_s(GRAPH, task, region, place)


def test_whole_tasks_share_one_launch() -> None:
    together_s = launched_s([seconds("a", HOST), seconds("b", HOST)], TABLE.launch_s(HOST))
    assert together_s == pytest.approx(5.0 + 7.0 - 1.0)


def test_a_part_pays_for_one_launch() -> None:
    assert seconds("a", OTHER, 4) == pytest.approx(1.0 + (5.0 - 1.0) / 2)


def test_a_change_of_layout_is_charged_to_its_tensors_and_its_way() -> None:
    changes = {
        (HOST, OTHER): LayoutChange({"a"}, 0.25, 0.5),
        (OTHER, OTHER): LayoutChange({"a"}, 0.0, 2.0),
    }
    cost = CostTable({}, stitches_s={OTHER: (1.0, 0.125)}, layout_changes=changes)
    there, back = Link(HOST, OTHER, 0.0, 4.0), Link(OTHER, HOST, 0.0, 4.0)
    assert cost.transfer_s("a", 8, there) == 8 / 4 + 0.25 + 8 * 0.5
    assert cost.transfer_s("b", 8, there) == cost.transfer_s("a", 8, back) == 8 / 4
    assert cost.stitch_s("a", 8, 6, OTHER) == 1.0 + 8 * 0.125 + 6 * 2.0
    assert cost.stitch_s("b", 8, 6, OTHER) == 1.0 + 8 * 0.125
    assert cost.stitch_s("a", 8, 6, HOST) == 0.0
