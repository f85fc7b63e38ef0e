"""Constants folded, identities gone, batch norm folded, every shape known.

onnxscript's optimizer does the work. It leaves ConstantOfShape alone to keep files small, which
stops whole chains of shape arithmetic from folding in exports of NASNet and its kind; here they
fold. What would become large is not computed at all.
"""

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as passes
import onnxscript.optimizer

from coexec.errors import ModelError
from coexec.frontend.infer import has_open, infer, left_alone
from coexec.frontend.quiet import quiet
from coexec.frontend.rewrites import rewrite, separate_dequantised
from coexec.frontend.types import without_maps
from coexec.frontend.unfit import UnfitError

__all__ = ["simplify"]

_ROUNDS = 8
_MOST_FOLDED = 512 * 512
"""Elements of a constant that is larger than what it is computed from; onnxscript's own limit."""
_GROWING = frozenset(
    {"AffineGrid", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "DFT", "Expand",
     "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "Range",
     "Resize", "STFT", "Tile", "Upsample"}
)  # fmt: skip
"""Operators for which the values of an input say how large the result is."""


def simplify(model: ir.Model, rewrites: bool = True) -> tuple[str, ...]:
    """Simplify ``model`` in place until nothing changes; then rewrite it, unless told not to.

    Returns:
        The declared shapes that were wrong, each as a text.

    Raises:
        ModelError: the optimizer or shape inference refuses the model.
    """
    names, listed = _interface(model), [(v.name or "", v) for v in model.graph.outputs]
    # The optimizer would insert an Identity, and rename, where an output is computed by no node or
    # listed twice. An engine computes such an output once or never.
    made = dict.fromkeys(v for _, v in listed if v.producer() is not None)
    try:
        with quiet(), without_maps(model):
            model.graph.outputs[:] = list(made)
            passes.InlinePass()(model)
            wrong = infer(model)
            _keep_attributes(model)
            # Folding first: the optimizer tries every rewrite at every node, and what folds away
            # is often most of an export.
            _until_stable(model, _fold)
            if has_open(model):  # what decides a shape may be constant by now
                infer(model)
                _until_stable(model, _fold)
            _until_stable(model, _optimize)
            if rewrites:
                rewrite(model)
                passes.CommonSubexpressionEliminationPass()(model)
                separate_dequantised(model)
            _encode_texts(model)
            passes.NameFixPass()(model)
            model.graph.sort()
            wrong += infer(model)
            _restore_outputs(model, listed)
    except Exception as error:
        raise UnfitError("the model cannot be simplified", error) from error
    if _interface(model) != names:
        raise ModelError(
            f"simplification renamed inputs or outputs, {names} to {_interface(model)}; this is a "
            f"bug, please report it with the model"
        )
    return wrong


def _interface(model: ir.Model) -> list[list[str | None]]:
    return [[v.name for v in values] for values in (model.graph.inputs, model.graph.outputs)]


def _restore_outputs(model: ir.Model, listed: Sequence[tuple[str, ir.Value]]) -> None:
    """List all outputs again, by their first names: results, inputs, and weights."""
    graph = model.graph
    found = {v.name: v for v in (*graph.inputs, *graph.outputs)} | dict(graph.initializers)
    for name, value in listed:
        if name not in found and value.const_value is not None:  # a weight that nothing reads
            found[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=value.const_value
            )
            graph.register_initializer(found[name])
    graph.outputs[:] = [found.get(name, value) for name, value in listed]


def _keep_attributes(model: ir.Model) -> None:
    """Write CastLike as Cast with its own attributes: the optimizer would drop these."""
    for node in model.graph.all_nodes():
        like = node.inputs[1] if node.op_type == "CastLike" and not node.domain else None
        if like is not None and like.dtype is not None and node.attributes:
            node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
            node.op_type = "Cast"
            node.resize_inputs(1)


def _encode_texts(model: ir.Model) -> None:
    """Write constants of texts as onnx_ir reads them from a file; those folded it cannot save."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.STRING:
            texts = [t.encode() if isinstance(t, str) else t for t in tensor.numpy().flat]
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.StringTensor(texts, shape=shape, name=value.name)


def _until_stable(model: ir.Model, step: Callable[[ir.Model], None]) -> None:
    for _ in range(_ROUNDS):
        size = len(model.graph)
        step(model)
        if len(model.graph) == size:
            return


def _fold(model: ir.Model) -> None:
    with left_alone(model):
        onnxscript.optimizer.fold_constants_ir(
            model, onnx_shape_inference=True, should_fold=_should_fold
        )
    passes.RemoveUnusedNodesPass()(model)


def _optimize(model: ir.Model) -> None:
    with left_alone(model):
        onnxscript.optimizer.optimize_ir(
            model, num_iterations=1, onnx_shape_inference=True, should_fold=_should_fold
        )


def _should_fold(node: ir.Node) -> bool | None:
    """None: as the optimizer thinks best. It looks at a result's size when it has computed it."""
    inputs = (v.const_value for v in node.inputs if v is not None)
    given = sum(tensor.size for tensor in inputs if tensor is not None)
    for value in node.outputs:
        if value.shape is None or not value.shape.is_static():
            if node.op_type in _GROWING:
                return False
        elif math.prod(value.shape.numpy()) > max(_MOST_FOLDED, given):
            return False
    return True if node.op_type == "ConstantOfShape" else None
