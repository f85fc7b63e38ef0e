"""Types and shapes of all values: those that operators compute, not those that the file declares.

ONNX's inference comes first; it looks into the bodies of operators that are defined as functions.
Where it is known to differ from ONNX Runtime for some sizes, ONNX Runtime computes the shape
(`coexec.model.computed`). For shapes that are still open, ONNX Runtime's own inference is used.
Declared shapes do not count. A wrong one is corrected, because ONNX Runtime would run the model all
the same. Where neither inference gives a shape, it depends on data, and the declared shape was true
for one run at best.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from coexec.errors import ModelError
from coexec.model.computed import doubtful_shapes
from coexec.model.opaque import bodies, live, reads
from coexec.model.reference_session import plain_session, value_info, without_weights
from coexec.model.types import LEFT_ALONE, declared_values, hidden, without_maps

__all__ = ["complete", "contradictions", "infer"]

_TOLD = "coexec.told"
"""Key in the metadata of values whose shape ONNX Runtime has given."""
_RANK = "coexec.rank:"
_SHAPES = "coexec.shapes"
"""Key in the metadata of nodes for which inference is wrong, or may be: the shapes of the outputs,
open where only a run of the model shows them."""


def infer(model: ir.Model) -> None:
    """Set the shapes of all values, in place."""
    nodes = list(model.graph.all_nodes())
    declared = {v: v.shape for node in nodes for v in node.outputs}
    for node in nodes:
        node.meta.pop(_SHAPES, None)
    texts = {
        value: value.const_value
        for value in model.graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype == ir.DataType.STRING
    }
    for value in texts:  # onnx_ir would need their size in bytes, and fail halfway
        value.const_value = None
    for _ in range(len(nodes) + 1):
        _infer_from(model, nodes)
        if not _correct(model):
            break  # otherwise again, for shapes inferred from a wrong one
    for value, tensor in texts.items():
        value.const_value = tensor
    for value, declaration in declared.items():
        if value.meta.get(_TOLD) and not _is_static(value.shape):
            value.shape = declaration


def contradictions(model: ir.Model, declared: Mapping[str, ir.Shape | None]) -> tuple[str, ...]:
    """The declared shapes, by name of the value, that differ from those in ``model``, as texts."""
    shapes = {v.name: v.shape for node in model.graph for v in node.outputs}
    pairs = ((name, shapes.get(name), shape) for name, shape in declared.items())
    return tuple(
        f"{name!r} as {_text(declaration)} where it has {_text(shape)}"
        for name, shape, declaration in pairs
        if shape is not None and declaration is not None and _contradict(shape, declaration)
    )


def _infer_from(model: ir.Model, nodes: Sequence[ir.Node]) -> None:
    """Infer all shapes again, except those that are known to be inferred wrong."""
    for node in nodes:
        for value, shape in zip(node.outputs, _corrected(node), strict=True):
            value.shape = shape
    # Without the values of small tensors: ONNX propagates them without a limit, and a Range or a
    # chain of Concats can have 2**36 of them. Folding gives the same results, and checks sizes
    # first.
    with without_maps(model), _left_alone(model):
        for value, kind in _types_of_others(model, nodes).items():
            value.type = kind
        passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)


def _is_no_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.SequenceType | ir.OptionalType)


def _makes_no_tensor(node: ir.Node) -> bool:
    """Whether the operator has an output that is never a tensor, such as a sequence."""
    if not onnx.defs.has(node.op_type, node.domain):
        return False
    outputs = onnx.defs.get_schema(node.op_type, node.domain).outputs
    return any(not any(kind.startswith("tensor(") for kind in out.types) for out in outputs)


def _types_of_others(
    model: ir.Model, nodes: Sequence[ir.Node]
) -> dict[ir.Value, ir.TypeProtocol | None]:
    """The types of the values without a type that are no tensors.

    `ShapeInferencePass` sets the type of the elements only: a sequence would become a tensor.
    """
    untyped = {v.name: v for node in nodes for v in node.outputs if v.type is None}
    if not untyped or not (
        any(map(_is_no_tensor, model.graph.inputs)) or any(map(_makes_no_tensor, nodes))
    ):
        return {}
    proto, _ = without_weights(model)
    inferred = onnx.shape_inference.infer_shapes(proto)
    infos = (
        ir.serde.deserialize_value_info_proto(i, None) for i in declared_values(inferred.graph)
    )
    return {untyped[v.name]: v.type for v in infos if v.name in untyped and _is_no_tensor(v)}


def _corrected(node: ir.Node) -> Sequence[ir.Shape | None]:
    shapes: Sequence[ir.Shape | None] = node.meta.get(_SHAPES, (None,) * len(node.outputs))
    return shapes


def _correct(model: ir.Model) -> bool:
    """Let ONNX Runtime compute shapes that inference may have wrong; return whether one has
    changed.

    A shape that cannot be computed now, because it depends on data or is too large to try, is open.
    """
    changed = False
    for node in model.graph.all_nodes():
        shapes = doubtful_shapes(node, model)
        if shapes is None:
            continue
        wrong = shapes != [value.shape for value in node.outputs]
        if wrong or not all(map(_is_static, shapes)):
            node.meta[_SHAPES] = shapes
        for value, shape in zip(node.outputs, shapes, strict=True):
            value.shape = shape
            value.meta[_TOLD] = _is_static(shape)
            if value.type is None and node.inputs[0] is not None:
                value.type = node.inputs[0].type
        changed |= wrong
    return changed


@contextmanager
def _left_alone(model: ir.Model) -> Iterator[None]:
    """Let inference and optimizer skip the nodes with wrong inference, inside the ``with``
    block."""
    with hidden([n for n in model.graph.all_nodes() if _SHAPES in n.meta], LEFT_ALONE):
        yield


def complete(model: ir.Model) -> None:
    """Complete the types and shapes that `infer` has left open, by ONNX Runtime's inference."""
    _ask(model)
    while _correct(model):
        _ask(model)


def _ask(model: ir.Model) -> None:
    _, read = live(model)
    doubtful = _doubtful(model)
    unknown = {
        value.name: value
        for node in model.graph
        for value in node.outputs
        if value.name and value in read and not _is_known(value) and node not in doubtful
    }
    if not unknown:
        return
    with suppress(ModelError):  # on an error they stay unknown
        for output in _asked(model, unknown):
            info = value_info(output)
            if info is not None and "map(" not in output.type:  # onnx_ir has no maps
                _take(unknown[output.name], ir.serde.deserialize_value_info_proto(info, None))
        tensors = [n for n, v in unknown.items() if v.shape is None and v.dtype is not None]
        tensors = [n for n in tensors if isinstance(unknown[n].type, ir.TensorType)]
        for output in _asked(model, unknown, tensors) if tensors else ():
            if output.name.startswith(_RANK) and output.shape == [0]:
                unknown[output.name.removeprefix(_RANK)].shape = ir.Shape([])
    for value in unknown.values():
        value.meta[_TOLD] = _is_static(value.shape)


def _doubtful(model: ir.Model) -> set[ir.Node]:
    """The nodes of the main graph for which inference is wrong, also those with such a node in a
    body."""
    return {node for node in model.graph if any(_SHAPES in n.meta for n in _with_bodies(node))}


def _with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for body in bodies(node):
        yield from body.all_nodes()


def _asked(model: ir.Model, names: Collection[str], ranks: Collection[str] = ()) -> list[Any]:
    """ONNX Runtime's descriptions of the values ``names``, and of the shapes of the values
    ``ranks``.

    It infers shapes as ONNX does. Therefore the results of nodes with wrong inference are inputs
    here; if the type of such a result is not known, everything that depends on it is left out.

    Raises:
        ModelError: ONNX Runtime does not run the model with these outputs.
    """
    probe = model.clone()
    probe.graph.outputs.clear()
    untyped = set[ir.Value]()
    for node in _doubtful(probe):
        for value in node.outputs:
            new_input = ir.Value(name=value.name, shape=value.shape, type=value.type)
            value.replace_all_uses_with(new_input)
            value.name = None
            if value.type is None:
                untyped.add(new_input)
            elif new_input.name:
                probe.graph.inputs.append(new_input)
        probe.graph.remove(node)
    for node in list(probe.graph):
        if not untyped.isdisjoint(reads(node)):
            untyped.update(node.outputs)
    values = {v.name: v for node in probe.graph for v in node.outputs if v.name in names}
    for value in values.values():  # ONNX Runtime completes outputs without a type
        value.type = value.shape = None
        if value not in untyped:
            probe.graph.outputs.append(value)
    for name in ranks:
        if values[name] in untyped:
            continue
        node = ir.node("Shape", [values[name]])
        node.outputs[0].name = _RANK + name
        probe.graph.append(node)
        probe.graph.outputs.append(node.outputs[0])
    if untyped:
        passes.RemoveUnusedNodesPass()(probe)
    return list(plain_session(probe, threads=1, optimised=False).get_outputs())


def _is_known(value: ir.Value) -> bool:
    return value.type is not None and _is_static(value.shape)


def _is_static(shape: ir.Shape | None) -> bool:
    return shape is not None and shape.is_static()


def _take(value: ir.Value, inferred_value: ir.Value) -> None:
    if value.type is None:
        value.type = inferred_value.type
    value.shape = _merged(inferred_value.shape, value.shape)


def _merged(inferred_shape: ir.Shape | None, declared_shape: ir.Shape | None) -> ir.Shape | None:
    """``inferred_shape``, with dimensions of ``declared_shape`` where it is open."""
    if inferred_shape is None or declared_shape is None:
        return declared_shape if inferred_shape is None else inferred_shape
    if len(inferred_shape) != len(declared_shape):
        return inferred_shape
    dims = zip(inferred_shape, declared_shape, strict=True)
    return ir.Shape([a if isinstance(a, int) else b for a, b in dims])


def _contradict(inferred_shape: ir.Shape, declared_shape: ir.Shape) -> bool:
    return len(inferred_shape) != len(declared_shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(inferred_shape, declared_shape, strict=True)
    )


def _text(shape: ir.Shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"
