"""Simplifies a model by ONNX Runtime's basic optimization and a few rewrites, and infers shapes."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common

from coexec.errors import ModelError
from coexec.model.basic import optimised
from coexec.model.model import forget_weights
from coexec.model.read import quiet
from coexec.model.rewrites import activate_before_concat, rewrite
from coexec.model.shape_mismatch import UnfitError
from coexec.model.shapes import infer


def simplified(model: ir.Model, *, rewrites: bool = True) -> ir.Model:
    """A new model that computes the same, with all shapes that ONNX Runtime infers.

    Args:
        rewrites: whether to shape the model for coexec's engines, too.

    Raises:
        ModelError: ONNX Runtime or shape inference refuses the model.
    """
    names, listed = _interface(model), [v.name or "" for v in model.graph.outputs]
    given = dict(model.graph.initializers) | {v.name: v for v in model.graph.inputs}
    model = model.clone()
    # ONNX Runtime computes an output that no node makes, or that is listed twice, by an Identity.
    made = dict.fromkeys(v for v in model.graph.outputs if v.producer() is not None)
    if not made:  # inputs and weights alone
        return model
    model.graph.outputs[:] = list(made)
    with quiet():
        common.InlinePass()(model)
        common.LiftSubgraphInitializersToMainGraphPass()(model)
        model = _replaced(model, merge=False)
        if rewrites:
            activate_before_concat(model)
        model = _replaced(model, merge=True)
        if rewrites:
            rewrite(model)
        common.RemoveUnusedOpsetsPass()(model)
        common.NameFixPass()(model)
        model.graph.sort()
        try:
            infer(model)
        except Exception as error:
            raise UnfitError("the shapes of the model cannot be inferred", error) from error
    _restore_outputs(model, listed, given)
    if _interface(model) != names:
        raise ModelError(
            f"simplification renamed inputs or outputs, {names} to {_interface(model)}; this is a "
            f"bug, please report it with the model"
        )
    return model


def _replaced(model: ir.Model, *, merge: bool) -> ir.Model:
    new = optimised(model, merge=merge)
    forget_weights(model)
    return new


def _interface(model: ir.Model) -> list[list[str | None]]:
    return [[v.name for v in values] for values in (model.graph.inputs, model.graph.outputs)]


def _restore_outputs(
    model: ir.Model, listed: Sequence[str], given: Mapping[str | None, ir.Value]
) -> None:
    """List all outputs again: results, inputs, and weights."""
    graph = model.graph
    by_name = {v.name: v for v in (*graph.inputs, *graph.outputs)} | dict(graph.initializers)
    for name in listed:
        if name not in by_name:  # a weight that nothing reads
            value = given[name]
            by_name[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=value.const_value
            )
            graph.register_initializer(by_name[name])
    graph.outputs[:] = [by_name[name] for name in listed]
