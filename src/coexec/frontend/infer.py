"""Types and shapes of all values: what operators compute, not what the file declares.

ONNX's inference comes first; it looks into the bodies of operators that are defined as functions.
What it leaves open, ONNX Runtime is asked for. Declared shapes count for nothing: one that is wrong
is corrected, as ONNX Runtime would run the model all the same, and where neither inference finds a
shape, data decides it, and what is declared was true of one run at best.
"""

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes

from coexec.errors import ModelError
from coexec.frontend.opaque import live
from coexec.frontend.plain import plain_session, value_info
from coexec.frontend.types import without_maps

__all__ = ["complete", "infer"]

_TOLD = "coexec.told"
"""Of values whose shape ONNX Runtime has told."""
_RANK = "coexec.rank:"


def infer(model: ir.Model) -> tuple[str, ...]:
    """Set the shapes of all values in place; the declarations that were wrong, as texts."""
    declared = {v: v.shape for node in model.graph.all_nodes() for v in node.outputs}
    for value in declared:
        value.shape = None
    texts = {
        value: value.const_value
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype == ir.DataType.STRING
    }
    for value in texts:  # onnx_ir asks for their size in bytes, and leaves the model in pieces
        value.const_value = None
    # Without the values of small tensors: ONNX propagates them without a limit, and a Range or a
    # chain of Concats can have 2**36. Folding finds the same, and looks at sizes first.
    with without_maps(model):
        passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    for value, tensor in texts.items():
        value.const_value = tensor
    wrong = []
    for value, given in declared.items():
        found = value.shape
        if value.meta.get(_TOLD) and not _is_static(found):
            value.shape = given
        if found is not None and given is not None and _contradict(found, given):
            wrong.append(f"{value.name!r} as {_text(given)} where it has {_text(found)}")
    return tuple(wrong)


def complete(model: ir.Model) -> bool:
    """Ask ONNX Runtime for the types and shapes that `infer` has left open.

    Returns:
        Whether it has told the shape of a tensor: more may follow from that.
    """
    _, read = live(model)
    unknown = {
        value.name: value
        for node in model.graph
        for value in node.outputs
        if value.name and value in read and not _is_known(value)
    }
    if not unknown:
        return False
    with suppress(ModelError):  # then it stays unknown
        for output in _asked(model, unknown):
            info = value_info(output)
            if info is not None and "map(" not in output.type:  # onnx_ir has no maps
                _take(unknown[output.name], ir.serde.deserialize_value_info_proto(info, None))
        tensors = [n for n, v in unknown.items() if v.shape is None and v.dtype is not None]
        tensors = [n for n in tensors if isinstance(unknown[n].type, ir.TensorType)]
        for output in _asked(model, unknown, tensors)[len(unknown) :] if tensors else ():
            if output.shape == [0]:
                unknown[output.name.removeprefix(_RANK)].shape = ir.Shape([])
    for value in unknown.values():
        value.meta[_TOLD] = _is_static(value.shape)
    return any(value.meta[_TOLD] for value in unknown.values())


def _asked(model: ir.Model, names: Collection[str], ranks: Collection[str] = ()) -> list[Any]:
    """What ONNX Runtime says of the values ``names``, then of the shapes of the values ``ranks``.

    Raises:
        ModelError: it does not run the model with these outputs.
    """
    probe = model.clone()
    probe.graph.outputs.clear()
    values = {v.name: v for node in probe.graph for v in node.outputs if v.name in names}
    for value in values.values():  # ONNX Runtime completes outputs without a type
        value.type = value.shape = None
        probe.graph.outputs.append(value)
    for name in ranks:
        node = ir.node("Shape", [values[name]])
        node.outputs[0].name = _RANK + name
        probe.graph.append(node)
        probe.graph.outputs.append(node.outputs[0])
    return list(plain_session(probe, threads=1, optimised=False).get_outputs())


def _is_known(value: ir.Value) -> bool:
    return value.type is not None and _is_static(value.shape)


def _is_static(shape: ir.Shape | None) -> bool:
    return shape is not None and shape.is_static()


def _take(value: ir.Value, found: ir.Value) -> None:
    if value.type is None:
        value.type = found.type
    value.shape = _merged(found.shape, value.shape)


def _merged(found: ir.Shape | None, given: ir.Shape | None) -> ir.Shape | None:
    """What is found, with the dimensions of ``given`` where it says nothing."""
    if found is None or given is None:
        return given if found is None else found
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
