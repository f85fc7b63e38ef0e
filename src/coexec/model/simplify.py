"""Simplifies a model by its passes, and infers every shape.

`coexec.model.passes` lists the passes. One that fails can be left out by its name.
"""

from collections.abc import Callable, Collection, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common

from coexec.errors import ModelError
from coexec.model.infer import infer
from coexec.model.onnx_logging import quiet
from coexec.model.passes import PASSES, Pass, apply
from coexec.model.shape_mismatch import UnfitError
from coexec.model.types import without_maps

__all__ = ["Watch", "simplify"]

Watch = Callable[[Pass, ir.Model, bool], None]
"""Called with a pass and the model before it (False) and after it (True)."""


def simplify(
    model: ir.Model,
    rewrites: bool = True,
    without: Collection[str] = (),
    watch: Watch | None = None,
) -> tuple[str, ...]:
    """Apply all passes to ``model``, in place.

    Args:
        rewrites: whether to shape the model for coexec's engines, too.
        without: names of passes to leave out.

    Returns:
        The declared shapes that were wrong, each as a text.

    Raises:
        PassError: a pass failed; the model is of no use any more.
        ModelError: shape inference refuses the model.
    """
    names, listed = _interface(model), [(v.name or "", v) for v in model.graph.outputs]
    # An Identity would be inserted, and values renamed, where an output is computed by no node or
    # listed twice. An engine computes such an output once or never.
    made = dict.fromkeys(v for _, v in listed if v.producer() is not None)
    chosen = [
        each
        for each in PASSES.values()
        if each.name not in without and (rewrites or not each.for_engines)
    ]
    with quiet(), without_maps(model):
        model.graph.outputs[:] = list(made)
        _apply([each for each in chosen if each.before_shapes], model, watch)
        wrong = _inferred(model)
        _apply([each for each in chosen if not each.before_shapes], model, watch)
        _encode_texts(model)
        common.NameFixPass()(model)
        model.graph.sort()
        wrong += _inferred(model)
        _restore_outputs(model, listed)
    if _interface(model) != names:
        raise ModelError(
            f"simplification renamed inputs or outputs, {names} to {_interface(model)}; this is a "
            f"bug, please report it with the model"
        )
    return wrong


def _apply(passes: Sequence[Pass], model: ir.Model, watch: Watch | None) -> None:
    for each in passes:
        if watch is not None:
            watch(each, model, False)
        apply(each, model)
        if watch is not None:
            watch(each, model, True)


def _inferred(model: ir.Model) -> tuple[str, ...]:
    try:
        return infer(model)
    except Exception as error:
        raise UnfitError("the shapes of the model cannot be inferred", error) from error


def _interface(model: ir.Model) -> list[list[str | None]]:
    return [[v.name for v in values] for values in (model.graph.inputs, model.graph.outputs)]


def _restore_outputs(model: ir.Model, listed: Sequence[tuple[str, ir.Value]]) -> None:
    """List all outputs again, by their first names: results, inputs, and weights."""
    graph = model.graph
    by_name = {v.name: v for v in (*graph.inputs, *graph.outputs)} | dict(graph.initializers)
    for name, value in listed:
        if name not in by_name and value.const_value is not None:  # a weight that nothing reads
            by_name[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=value.const_value
            )
            graph.register_initializer(by_name[name])
    graph.outputs[:] = [by_name.get(name, value) for name, value in listed]


def _encode_texts(model: ir.Model) -> None:
    """Write constants of texts as onnx_ir reads them from a file: it cannot save folded ones."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.STRING:
            texts = [t.encode() if isinstance(t, str) else t for t in tensor.numpy().flat]
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.StringTensor(texts, shape=shape, name=value.name)
