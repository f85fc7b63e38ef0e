"""Models, lowered models and modules as text, for tests that compare before with after."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from textwrap import dedent

import onnx_ir as ir

from coexec.graph.graph import Piece
from coexec.hardware.hardware import Place
from coexec.lowering.dialect import Dialect
from coexec.lowering.layout import blocks_of
from coexec.lowering.lowered_model import LoweredModel, without_lowering
from coexec.lowering.pieces import cut_pieces
from coexec.model.group import build_graph
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from tests.helpers.lowered_text import format_lowered, format_module, parse_lowered
from tests.helpers.model_text import format_model, parse_model

NCHWC = Dialect(
    layout_ops=frozenset({("", "Identity"), ("nchwc", "ReorderInput"), ("nchwc", "ReorderOutput")}),
    like={("nchwc", "Conv"): "Conv", ("nchwc", "MaxPool"): "MaxPool"},
    block=4,
    domain="nchwc",
    enter=("nchwc", "ReorderInput"),
    leave=("nchwc", "ReorderOutput"),
    widened="Widened",
)
"""Operators like ONNX Runtime's, with the same blocks on every machine."""

INNER = Dialect(
    block=4,
    domain="inner",
    enter=("inner", "EnterBlocks"),
    leave=("inner", "LeaveBlocks"),
    inner=lambda tensor: blocks_of(4 if len(tensor.shape) == 4 else 0),
)
"""Of an engine that computes standard operators and has feature maps in blocks inside."""

Part = str | tuple[str, int, int, int]
"""The output of a whole task; or of a piece of it, with an axis, start and stop."""


def rewritten(rewrite: Callable[[ir.Model], object], text: str) -> str:
    """The model of ``text`` behind a rewrite, as text."""
    model = parse_model(dedent(text))
    rewrite(model)
    return format_model(model)


def relowered(text: str, dialect: Dialect) -> str:
    """A lowered model as text with all notes, from its text with any notes."""
    return format_lowered(parse_lowered(dedent(text), dialect))


def modules(
    text: str,
    order: Mapping[str, Sequence[Part]],
    lowered: Mapping[tuple[str, ...], tuple[str, Dialect]],
) -> str:
    """The modules of a plan, in the order of its segments, as text.

    Args:
        text: the model; each of its nodes is a task of its own unless ONNX Runtime fuses it.
        order: what each device computes.
        lowered: by devices that share it, the lowered model as text, and its dialect. Other devices
            compute the model as it is; so do those with the text "".
    """
    source = parse_model(dedent(text))
    graph = build_graph(source, "small")
    unlowered = without_lowering(source, [n for t in graph.tasks for n in t.outputs])

    by_device: dict[str, LoweredModel] = {}
    for devices, (lines, dialect) in lowered.items():
        own = (
            parse_lowered(dedent(lines), dialect) if lines else replace(unlowered, dialect=dialect)
        )
        by_device |= dict.fromkeys(devices, own)

    def piece(part: Part) -> Piece:
        name, *cut = (part,) if isinstance(part, str) else part
        task = graph.producer[name]
        whole = graph.whole_piece(task)
        return Piece(task.name, whole.region.with_axis(*cut)) if cut else whole

    places = {Place(d, "engine"): tuple(map(piece, parts)) for d, parts in order.items()}
    plan = Plan.of_places(graph.fingerprint, places, Provenance("test"))
    by_place = {place: by_device.get(place.device, unlowered) for place in places}
    made, _ = cut_pieces(derive(plan, graph), by_place, unlowered)
    return "\n".join(map(format_module, made))
