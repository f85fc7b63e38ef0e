"""Constants computed at load time: shape arithmetic, and all else that depends only on weights.

onnxscript's constant folder walks through the model and infers shapes on its way. It computes with
numpy, by ONNX's reference. It is used only where no other result is possible: moving values,
whole-number arithmetic, and operations that IEEE 754 defines to the last bit. ONNX Runtime computes
all other constants, with the kernels that would compute them in each run. Results that would become
large are not computed.
"""

import math
from collections.abc import Collection, Sequence
from contextlib import suppress

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
import onnxscript.optimizer

from coexec.arrays import Array
from coexec.model.infer import has_open, infer, left_alone
from coexec.model.nondeterministic import is_random
from coexec.model.opaque import reads
from coexec.model.reference_session import plain_session
from coexec.model.replacing import own_weight
from coexec.model.types import without_types
from coexec.model.values import run_session

__all__ = ["fold", "fold_constants"]

_ROUNDS = 8
_MOST_READ = 8192
"""Most elements of an input, as in onnxscript: weights stay as they are."""
_MOST_FOLDED = 512 * 512
"""Most elements of a constant that is larger than its inputs; onnxscript's own limit."""
_GROWING = frozenset(
    {"AffineGrid", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "DFT", "Expand",
     "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "Range",
     "Resize", "STFT", "Tile", "Upsample"}
)  # fmt: skip
"""Operators for which the values of an input determine the size of the result."""
_MOVING = frozenset({"Concat", "Constant", "ConstantOfShape", "Flatten", "Gather", "Identity",
                     "Reshape", "Shape", "Size", "Slice", "Squeeze", "Transpose",
                     "Unsqueeze"})  # fmt: skip
"""Operators whose results are values of an input."""
_COUNTING = frozenset({"Abs", "Add", "And", "Cast", "Equal", "Expand", "Greater", "GreaterOrEqual",
                       "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Range",
                       "ReduceProd", "Sub", "Tile", "Where"})  # fmt: skip
"""Operators that have only one possible result for whole numbers."""
_ROUNDED = frozenset(
    {"Abs", "Add", "Ceil", "Div", "Equal", "Floor", "Greater", "Less", "Mul", "Neg", "Sqrt", "Sub"}
)
"""Operators whose results IEEE 754 defines."""
_CHOOSING = frozenset({"Cast", "Clip", "Max", "Min"})
"""The same for finite numbers except -0.0; a Cast only for numbers that fit into 32 bits."""
_WHOLE = frozenset({ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64})
_BROKEN = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
_CAST_TO = frozenset(int(kind) for kind in _WHOLE | _BROKEN)
_MOST_CAST = 2**31 - 128
_QUANTISING = frozenset({"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"})
"""Operators by which engines recognise quantised tensors."""
_LEFT = frozenset({"ConcatFromSequence", "SplitToSequence"})
"""Operators that onnxscript replaces by others, which are not the same in all operator sets."""


def fold_constants(model: ir.Model) -> None:
    """Fold all constants of ``model`` in place and make weights of them."""
    _keep_attributes(model)
    fold(model)
    if has_open(model):  # a value that decides a shape may be constant by now
        infer(model)
        fold(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    common.RemoveUnusedNodesPass()(model)
    _remove_unread_weights(model)


def _remove_unread_weights(model: ir.Model) -> None:
    """Remove the weights that only nodes of a folded If read: onnx_ir still counts these uses, and
    ONNX Runtime takes no values for weights that no node reads."""
    weights = model.graph.initializers
    read = {value for node in model.graph for value in reads(node)}
    for name, value in list(weights.items()):
        if value not in read and not (value.is_graph_input() or value.is_graph_output()):
            del weights[name]


def _keep_attributes(model: ir.Model) -> None:
    """Write CastLike as a Cast that keeps its attributes: folding would drop them."""
    for node in model.graph.all_nodes():
        like = node.inputs[1] if node.op_type == "CastLike" and not node.domain else None
        if like is not None and like.dtype is not None and node.attributes:
            node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
            node.op_type = "Cast"
            node.resize_inputs(1)


def fold(model: ir.Model) -> None:
    """Fold all constants of ``model`` in place, until there are none left to be folded."""
    for _ in range(_ROUNDS):
        _move_and_count(model)
        if not _compute(model):
            return


def _move_and_count(model: ir.Model) -> None:
    """Fold constants that numpy computes like ONNX Runtime, and those that follow from shapes.

    If onnxscript fails at a node, the constants that it has folded so far are kept.
    """
    for _ in range(_ROUNDS):
        size = len(model.graph)
        with left_alone(model), without_types(model, _LEFT), suppress(RuntimeError):
            onnxscript.optimizer.fold_constants_ir(
                model, onnx_shape_inference=True, should_fold=_should_fold
            )
        common.RemoveUnusedNodesPass()(model)
        if len(model.graph) == size:
            return


def _should_fold(node: ir.Node) -> bool | None:
    """Whether to fold ``node``. None: the optimizer decides, by the size of the computed result."""
    if not _is_certain(node) or _is_large(node):
        return False
    return True if node.op_type == "ConstantOfShape" else None


def _is_certain(node: ir.Node) -> bool:
    """Whether numpy gives the same result as ONNX Runtime."""
    if node.domain:
        return False
    if node.op_type in _MOVING:
        return True
    inputs = [value for value in node.inputs if value is not None]
    kinds = {value.dtype for value in inputs}
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) not in _CAST_TO:
        return False
    if kinds <= _WHOLE:
        return node.op_type in _COUNTING
    if not kinds <= _BROKEN:
        return False
    if node.op_type in _ROUNDED:
        return True
    return node.op_type in _CHOOSING and all(map(_is_ordinary, inputs))


def _is_ordinary(value: ir.Value) -> bool:
    """Whether a constant contains only small finite numbers, and no -0.0."""
    tensor = value.const_value
    if tensor is None or tensor.size > _MOST_READ:
        return False
    array = tensor.numpy()
    return bool((np.abs(array) < _MOST_CAST).all() and not np.signbit(array[array == 0]).any())


def _is_large(node: ir.Node) -> bool:
    """Whether the result is too large to be a constant, or may be."""
    inputs = (v.const_value for v in node.inputs if v is not None)
    input_elements = sum(tensor.size for tensor in inputs if tensor is not None)
    for value in node.outputs:
        if value.shape is None or not value.shape.is_static():
            if node.op_type in _GROWING:
                return True
        elif math.prod(value.shape.numpy()) > max(_MOST_FOLDED, input_elements):
            return True
    return False


def _compute(model: ir.Model) -> bool:
    """Let ONNX Runtime compute nodes that depend only on constants; return whether one was
    folded."""
    nodes = _computable(model)
    if not nodes:
        return False
    ends = [v for node in nodes for v in node.outputs if _is_read_outside(v, nodes)]
    for groups in [(list(nodes), ends)], [([n], [v for v in n.outputs if v.name]) for n in nodes]:
        folded = 0
        for group, results in groups:
            arrays = _results(model, group, results)
            folded += sum(map(_store, results, arrays or ()))
        if folded:
            common.RemoveUnusedNodesPass()(model)
            return True
    return False


def _is_read_outside(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def _computable(model: ir.Model) -> dict[ir.Node, None]:
    """The nodes of the main graph that depend only on constants, in order."""
    computable: dict[ir.Node, None] = {}
    for node in model.graph:
        if node.domain or not node.inputs or node.op_type in _QUANTISING | _LEFT | {"Constant"}:
            continue
        graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        if any(a.type in graphs or a.is_ref() for a in node.attributes.values()):
            continue
        if is_random(node) or _is_large(node) or not all(map(_is_storable, node.outputs)):
            continue
        if all(v is None or v.producer() in computable or _is_small(v) for v in node.inputs):
            computable[node] = None
    return computable


def _is_storable(value: ir.Value) -> bool:
    static = value.shape is not None and value.shape.is_static()
    return not value.name or (static and value.dtype not in (None, ir.DataType.STRING))


def _is_small(value: ir.Value) -> bool:
    tensor = None if value.is_graph_input() else value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return False
    return tensor.size <= _MOST_READ


def _results(
    model: ir.Model, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]
) -> list[Array] | None:
    """The values ``outputs`` of ``nodes``; None if ONNX Runtime does not compute them."""
    copies: dict[ir.Value, ir.Value] = {}
    made: list[ir.Node] = []
    for value in (v for node in nodes for v in node.inputs if v is not None):
        tensor = value.const_value
        if tensor is not None and value not in copies:
            copies[value] = own_weight(f"given.{len(copies)}", tensor)
    weights = list(copies.values())
    try:
        for node in nodes:
            inputs = [None if value is None else copies[value] for value in node.inputs]
            count = len(node.outputs)
            made.append(
                ir.Node("", node.op_type, inputs, node.attributes.values(), num_outputs=count)
            )
            for old, new in zip(node.outputs, made[-1].outputs, strict=True):
                new.name, new.type = f"made.{len(copies)}" if old.name else "", old.type
                copies[old] = new
        graph = ir.Graph(
            [],
            [copies[v] for v in outputs],
            nodes=made,
            initializers=weights,
            name="constants",
            opset_imports=dict(model.opset_imports),
        )
        session = plain_session(ir.Model(graph, ir_version=model.ir_version), 1, optimised=False)
        return run_session(session, [copies[v].name or "" for v in outputs], {})
    except Exception:  # a run of the model reports the error
        return None


def _store(value: ir.Value, array: Array) -> bool:
    """Replace a computed value by a constant; return whether that is possible."""
    maker, name = value.producer(), value.name
    graph = None if maker is None else maker.graph
    if not isinstance(graph, ir.Graph) or not isinstance(array, np.ndarray) or name is None:
        return False
    if ir.DataType.from_numpy(array.dtype) != value.dtype:
        return False
    value.name = None
    new = own_weight(name, ir.tensor(array))
    value.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.register_initializer(new)
    return True
