"""Constants folded, identities gone, batch norm folded, every shape known.

onnxscript's optimizer does the work. It leaves ConstantOfShape alone to keep files small, which
stops whole chains of shape arithmetic from folding in exports of NASNet and its kind; here they
fold, as long as the result stays below its size limit.
"""

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as passes
import onnxscript.optimizer

from coexec.errors import ModelError, UsageError, first_line
from coexec.frontend.infer import infer
from coexec.frontend.quiet import quiet
from coexec.frontend.rewrites import rewrite
from coexec.frontend.types import type_of, without_maps

__all__ = ["fix_shapes", "simplify"]

_ROUNDS = 8


def fix_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give the model's inputs the fixed ``shapes``, by input name.

    Raises:
        UsageError: no such input, or a shape that contradicts the model's own.
        ModelError: an input keeps a dynamic dimension.
    """
    weights = set(model.graph.initializers)
    inputs = {v.name: v for v in model.graph.inputs if v.name and v.name not in weights}
    for name, shape in shapes.items():
        if name not in inputs:
            raise UsageError(f"--shape names the input {name!r}, but the model's inputs are "
                             f"{', '.join(map(repr, inputs))}")  # fmt: skip
        own = inputs[name].shape
        fits = own is None or (
            len(own) == len(shape)
            and all(not isinstance(a, int) or a == b for a, b in zip(own, shape, strict=True))
        )
        if not fits or any(d < 1 for d in shape):
            raise UsageError(f"--shape {name}={','.join(map(str, shape))} contradicts the "
                             f"model, whose input {name!r} has the shape {own}")  # fmt: skip
        inputs[name].shape = ir.Shape(tuple(shape))
    for name, value in inputs.items():
        kind = type_of(value)
        if kind and not kind.startswith("tensor("):
            continue  # a sequence, a map or optional: each call brings its own sizes
        if value.shape is None or not value.shape.is_static():
            label = name if name.isprintable() else repr(name)
            raise ModelError(
                f"input {name!r} has the dynamic shape {value.shape}; coexec plans for fixed "
                f"shapes: add --shape {label}={_example(value.shape)} (or shapes={{{name!r}: ...}})"
            )


def _example(shape: ir.Shape | None) -> str:
    dims = shape if shape is not None else ir.Shape([1, 3, 224, 224])
    return ",".join(str(d) if isinstance(d, int) else "1" for d in dims)


def simplify(model: ir.Model, rewrites: bool = True) -> tuple[str, ...]:
    """Simplify ``model`` in place until nothing changes; then rewrite it, unless told not to.

    Returns:
        The declared shapes that were wrong, each as a text.

    Raises:
        ModelError: the optimizer or shape inference refuses the model.
    """
    _separate_outputs(model)
    names = _interface(model)
    try:
        with quiet(), without_maps(model):
            passes.InlinePass()(model)
            wrong = infer(model)
            _keep_attributes(model)
            # Folding first: the optimizer tries every rewrite at every node, and what folds away
            # is often most of an export.
            _until_stable(model, _fold)
            _until_stable(model, _optimize)
            if rewrites:
                rewrite(model)
            _encode_texts(model)
            passes.NameFixPass()(model)
            model.graph.sort()
            wrong += infer(model)
    except Exception as error:
        raise ModelError(f"the model cannot be simplified: {first_line(error)}; check it with "
                         f"onnx.checker.check_model(path, full_check=True)") from error  # fmt: skip
    if _interface(model) != names:
        raise ModelError(
            f"simplification renamed inputs or outputs, {names} to {_interface(model)}; this is a "
            f"bug, please report it with the model"
        )
    return wrong


def _interface(model: ir.Model) -> list[list[str | None]]:
    return [[v.name for v in values] for values in (model.graph.inputs, model.graph.outputs)]


def _separate_outputs(model: ir.Model) -> None:
    """An input that is also an output would be renamed; it is refused, as nobody exports that."""
    for value in model.graph.outputs:
        if value.is_graph_input():
            raise ModelError(f"the input {value.name!r} is also an output of the model; take it "
                             f"out of the outputs, or put an Identity in between")  # fmt: skip


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
    onnxscript.optimizer.fold_constants_ir(
        model, onnx_shape_inference=True, should_fold=_should_fold
    )
    passes.RemoveUnusedNodesPass()(model)


def _optimize(model: ir.Model) -> None:
    onnxscript.optimizer.optimize_ir(
        model, num_iterations=1, onnx_shape_inference=True, should_fold=_should_fold
    )


def _should_fold(node: ir.Node) -> bool | None:
    return True if node.op_type == "ConstantOfShape" else None
