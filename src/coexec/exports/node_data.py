"""The places and times of a plan as node data of Model Explorer, a viewer of models.

Model Explorer shows a value and a colour for each node, from one file for each kind of value
(https://github.com/google-ai-edge/model-explorer/wiki). Its adapter for ONNX, model-explorer-onnx,
names nodes by onnx_ir's `NameFixPass`, which is used here, too.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass

from coexec.exports.planned_model import proto_of
from coexec.graph.graph import Graph
from coexec.model.onnx_logging import quiet
from coexec.model.tasks_of_nodes import tasks_of_nodes
from coexec.selection.prepared import Prepared
from coexec.timing.placed_pieces import PlacedPiece, placed_pieces

__all__ = ["colours_of", "node_data"]

_COLOURS = (
    "#56b4e9",
    "#e69f00",
    "#009e73",
    "#f0e442",
    "#cc79a7",
    "#0072b2",
    "#d55e00",
    "#999999",
)
"""Colours of places that people with any colour vision distinguish (Okabe and Ito, 2008)."""
_GRADIENT = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#d55e00"})
"""Colours of times, from the shortest to the longest."""


def node_data(
    source: Any, prepared: Prepared, measured_s: Mapping[str, float]
) -> Mapping[str, str]:
    """The text of a file by its name: places, predicted and measured milliseconds.

    Each node of a task has its place. The time of a task is at one of its nodes, the first that it
    computes, so that the sum over nodes is the sum over tasks. A divided task has the time of its
    longest part.

    Args:
        source: of the model: path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        measured_s: by task; without any there is no file of measured times.

    Raises:
        ModelError: the model cannot be read.
    """
    model, graph = proto_of(source), prepared.graph
    tasks = tasks_of_nodes(model, graph)
    pieces_of = placed_pieces(prepared.schedule, prepared.cost)
    ids = _node_ids(model)
    place_by_node = {
        node: _places(pieces_of[task]) for node, task in zip(ids, tasks, strict=True) if task
    }
    head_of = _heads(model, tasks, graph)
    predicted_s = {t: max(p.predicted_s for p in own) for t, own in pieces_of.items() if own}
    files = {"place": _coloured(place_by_node)}
    for name, seconds in (("predicted_ms", predicted_s), ("measured_ms", measured_s)):
        if seconds:
            files[name] = {
                "results": {
                    ids[head_of[task]]: {"value": 1e3 * s}
                    for task, s in seconds.items()
                    if task in head_of and math.isfinite(s)  # JSON has no infinity
                },
                "gradient": _GRADIENT,
            }
    return {
        f"{name}.json": json.dumps({model.graph.name: {"name": name, **content}}, indent=1)
        for name, content in files.items()
    }


def _node_ids(model: onnx.ModelProto) -> Sequence[str]:
    """The names of the main graph's nodes, which become unique. Weights do not matter for them."""
    nodes = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    nodes.graph.node.extend(model.graph.node)
    with quiet():  # each weight is missed
        named = ir.from_proto(nodes)
    NameFixPass()(named)
    return [node.name or "" for node in named.graph]


def _places(pieces: Sequence[PlacedPiece]) -> str:
    return " + ".join(dict.fromkeys(str(piece.place) for piece in pieces))


def _heads(model: onnx.ModelProto, tasks: Sequence[str | None], graph: Graph) -> Mapping[str, int]:
    """By task, the index of the node that makes the result of its first operator; if none does,
    of the task's first node."""
    heads: dict[str, int] = {}
    for index, (node, name) in enumerate(zip(model.graph.node, tasks, strict=True)):
        if name is None:
            continue
        if name not in heads or set(graph.task[name].operators[0].outputs) & set(node.output):
            heads[name] = index
    return heads


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order in which they first come. After the last colour the
    first one comes again."""
    return dict(zip(dict.fromkeys(names), cycle(_COLOURS), strict=False))


def _coloured(text_by_node: Mapping[str, str]) -> Mapping[str, Any]:
    """Node data with one colour for equal texts."""
    colours = colours_of(text_by_node.values())
    results = {
        node: {"value": text, "bgColor": colours[text]} for node, text in text_by_node.items()
    }
    return {"results": results}
