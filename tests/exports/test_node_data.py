"""Node data of Model Explorer: places and times at the nodes of the model as it was given."""

import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import main
from coexec.exports.node_data import node_data
from tests.exports.test_planned_model import divided, prepared_for
from tests.helpers.small_models import branches


def results(text: str, graph: str = "small") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)[graph]["results"]
    return found


def unnamed() -> onnx.ModelProto:
    """A model whose nodes have no name or an equal one."""
    model = branches()
    for index, node in enumerate(model.graph.node):
        node.name = "" if index % 2 else "same"
    return model


def test_equal_places_have_one_colour() -> None:
    prepared = prepared_for(branches())
    found = results(node_data(branches(), prepared, {})["place.json"])
    colour_of = {row["value"]: row["bgColor"] for row in found.values()}
    assert colour_of.keys() == {str(place) for place in prepared.plan.places}
    assert len(set(colour_of.values())) == len(colour_of)
    assert all(row["bgColor"] == colour_of[row["value"]] for row in found.values())
    assert found.keys() == {node.name for node in branches().graph.node}


def test_the_sum_over_nodes_is_the_sum_over_tasks() -> None:
    prepared = prepared_for(branches())
    measured = {task.name: 1e-3 * n for n, task in enumerate(prepared.graph.tasks)}
    files = node_data(branches(), prepared, measured)
    cost, graph = prepared.cost, prepared.graph
    expected_s = math.fsum(
        cost.piece_s(graph, graph.task[piece.task], piece.region, place)
        for piece, place in prepared.plan.place_of.items()
    )
    predicted = results(files["predicted_ms.json"])
    assert math.fsum(row["value"] for row in predicted.values()) == pytest.approx(1e3 * expected_s)
    shown = results(files["measured_ms.json"])
    total = math.fsum(row["value"] for row in shown.values())
    assert total == pytest.approx(1e3 * sum(measured.values()))
    # Tasks are named after their first node.
    assert shown.keys() == measured.keys()


def test_a_divided_task_has_the_time_of_its_longest_part() -> None:
    model, prepared = divided(at=6)
    files = node_data(model, prepared, {})
    assert "measured_ms.json" not in files
    (row,) = results(files["predicted_ms.json"]).values()
    graph = prepared.graph
    parts_s = [
        prepared.cost.piece_s(graph, graph.tasks[0], piece.region, place)
        for piece, place in prepared.plan.place_of.items()
    ]
    assert row["value"] == pytest.approx(1e3 * max(parts_s))
    (row,) = results(files["place.json"]).values()
    assert row["value"] == " + ".join(map(str, prepared.plan.places))


def test_the_command_line_writes_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    words = ("zoo:squeezenet", "--platform", "kirin_990", "--planner", "heft")
    options = ("--node-data", str(folder), "--cache", str(tmp_path / "cache"))
    assert main(["explain", *words, *options]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["place.json", "predicted_ms.json"]
    (folder / "place.json").unlink()
    (folder / "place.json").mkdir()
    assert main(["explain", *words, *options]) == 2


@pytest.mark.parametrize("model", [branches(), unnamed()], ids=["named", "unnamed"])
def test_model_explorer_has_nodes_of_these_names(model: onnx.ModelProto, tmp_path: Path) -> None:
    adapter = pytest.importorskip("model_explorer_onnx.main", reason="no Model Explorer here")
    builder = pytest.importorskip("model_explorer.node_data_builder")
    onnx.save(model, str(tmp_path / "m.onnx"))
    graph = adapter.ONNXAdapter().convert(str(tmp_path / "m.onnx"), {})["graphs"][0]
    prepared = prepared_for(model)
    measured = {task.name: 1.0 for task in prepared.graph.tasks}
    for text in node_data(model, prepared, measured).values():
        ((name, content),) = json.loads(text).items()
        own = {node: builder.NodeDataResult(**row) for node, row in content["results"].items()}
        assert name == graph.id and own.keys() <= {node.id for node in graph.nodes}
        stops = [builder.GradientItem(**stop) for stop in content.get("gradient", ())]
        read = builder.GraphNodeData(own, content["name"], gradient=stops)
        shown = json.loads(builder.ModelNodeData({name: read}).to_json_string())[name]
        assert shown["results"] == content["results"]
