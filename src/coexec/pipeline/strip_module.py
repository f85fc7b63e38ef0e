"""A strip as an ordinary ONNX model for a machine of a pipeline, with only the weights that it
needs.

It is made of the model's own operators, which are cut like modules of plans
(`coexec.lowering.pieces`).
"""

from collections.abc import Sequence
from itertools import groupby

from coexec.graph.graph import Graph, Piece
from coexec.lowering.layout import PLAIN
from coexec.lowering.lowered_model import LoweredModel, without_lowering
from coexec.lowering.module import Module
from coexec.lowering.module_writer import ModuleWriter
from coexec.lowering.tensor_parts import part_name
from coexec.model.model import Model
from coexec.pipeline.strip import Strip

__all__ = ["ShareWriter"]


class ShareWriter:
    """Writes strips of one model."""

    def __init__(self, model: Model) -> None:
        self._graph = model.graph
        borders = [name for task in model.graph.tasks for name in task.outputs]
        self._unlowered: LoweredModel = without_lowering(model.source, borders)

    def write(self, strip: Strip, title: str) -> Module:
        """The strip as a module in standard operators. Its inputs are the strip's reads and its
        outputs the strip's writes, in their order and in the model's layout; `Tensor.name` of each
        is `part_name` of the part. Reads that are not needed are left out.

        Raises:
            PlanError: a piece cannot be computed from the strip's reads.
        """
        graph = self._graph
        writer = ModuleWriter(graph, self._unlowered, self._unlowered)
        for name, region in strip.reads:
            writer.read(name, region, PLAIN, part_name(name, region, PLAIN, graph))
        needed = _needed(strip, graph)
        for whole, pieces in groupby(strip.pieces, lambda piece: _is_whole(piece, graph)):
            if whole:
                writer.add_whole([graph.task[piece.task] for piece in pieces], needed)
            else:
                for piece in pieces:
                    writer.add(piece)
        return writer.module(title, [(name, region, PLAIN) for name, region in strip.writes])


def _is_whole(piece: Piece, graph: Graph) -> bool:
    return piece == graph.whole_piece(graph.task[piece.task])


def _needed(strip: Strip, graph: Graph) -> Sequence[str]:
    """Tensors that a piece reads, or that the strip writes."""
    read = (name for piece in strip.pieces for name in graph.task[piece.task].inputs)
    return list(dict.fromkeys((*read, *(name for name, _ in strip.writes))))
