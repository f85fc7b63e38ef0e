"""Types and shapes of all values: what operators compute, not what the file declares.

ONNX's inference comes first; it looks into the bodies of operators that are defined as functions.
What it leaves open, ONNX Runtime is asked for. Declarations are corrected where they contradict:
ONNX Runtime would run the model all the same. Where neither inference finds a shape, the values of
a tensor decide it, and what is declared was true of one run at best: such a shape is unknown.
"""

from contextlib import suppress

import onnx_ir as ir
import onnx_ir.passes.common as passes

from coexec.errors import ModelError
from coexec.frontend.opaque import live
from coexec.frontend.plain import plain_session, value_info
from coexec.frontend.types import without_maps

__all__ = ["complete", "infer"]

_DECLARED = "coexec.declared"
"""Of values whose shape no inference has found."""


def infer(model: ir.Model) -> tuple[str, ...]:
    """Set the shapes of all values in place; the declarations that were wrong, as texts."""
    values = [v for node in model.graph for v in node.outputs]
    declared = {value: value.shape for value in values}
    for value in values:
        value.shape = None
    texts = {
        value: value.const_value
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype == ir.DataType.STRING
    }
    for value in texts:  # onnx_ir asks for their size in bytes, and leaves the model in pieces
        value.const_value = None
    with without_maps(model):
        passes.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    for value, tensor in texts.items():
        value.const_value = tensor
    wrong = []
    for value, given in declared.items():
        found = value.shape
        value.shape = _merged(found, given)
        value.meta[_DECLARED] = value.shape is not None and not _is_static(found)
        if found is not None and given is not None and _contradict(found, given):
            wrong.append(f"{value.name!r} as {_text(given)} where it has {_text(found)}")
    return tuple(wrong)


def complete(model: ir.Model) -> None:
    """Ask ONNX Runtime for the types and shapes that `infer` has left open.

    A shape that it does not tell either is unknown then, whatever is declared.
    """
    _, read = live(model)
    unknown = {
        value.name: value
        for node in model.graph
        for value in node.outputs
        if value.name and value in read and not _is_known(value)
    }
    if not unknown:
        return
    probe = model.clone()
    probe.graph.outputs.clear()
    for node in probe.graph:
        for value in node.outputs:
            if value.name in unknown:  # ONNX Runtime completes outputs without a type
                value.type = value.shape = None
                probe.graph.outputs.append(value)
    for value in unknown.values():
        if value.meta.get(_DECLARED):
            value.shape = None
    with suppress(ModelError):  # then it stays unknown
        for output in plain_session(probe, threads=1, optimised=False).get_outputs():
            info = value_info(output)
            if info is not None and "map(" not in output.type:  # onnx_ir has no maps
                _take(unknown[output.name], ir.serde.deserialize_value_info_proto(info, None))


def _is_known(value: ir.Value) -> bool:
    known = value.type is not None and _is_static(value.shape)
    return known and not value.meta.get(_DECLARED)


def _is_static(shape: ir.Shape | None) -> bool:
    return shape is not None and shape.is_static()


def _take(value: ir.Value, found: ir.Value) -> None:
    if value.type is None:
        value.type = found.type
    value.shape = _merged(found.shape, value.shape)


def _merged(found: ir.Shape | None, given: ir.Shape | None) -> ir.Shape | None:
    """What is found, with the dimensions of ``given`` where it says nothing."""
    if found is None or given is None:
        return found or given
    if len(found) != len(given):
        return found
    dims = zip(found, given, strict=True)
    return ir.Shape([a if isinstance(a, int) else b for a, b in dims])


def _contradict(found: ir.Shape, given: ir.Shape) -> bool:
    return len(found) != len(given) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(found, given, strict=True)
    )


def _text(shape: ir.Shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"
