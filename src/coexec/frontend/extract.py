"""Cut a segment out of a model as a small ONNX model of its own, for a device to compile.

The tensors of an extracted model keep their names, with the region behind where they are a part:
"conv1[0:1, 0:64, 0:28, 0:56]". Weights used whole are the source's own tensor objects, so cutting
a model in segments neither reads nor copies them.
"""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from coexec.errors import PlanError
from coexec.frontend.model import Model
from coexec.frontend.parts import Parts, tensor_part
from coexec.ir.graph import Graph, Operator, Piece, Task
from coexec.ir.receptive import OperatorRegion, needed_inputs, operator_regions
from coexec.ir.region import Region
from coexec.ir.stitch import missing

__all__ = ["extract", "segment_inputs", "tensor_part"]


def extract(
    model: Model,
    pieces: Sequence[Piece],
    outputs: Sequence[tuple[str, Region]],
    inputs: Sequence[tuple[str, Region]] | None = None,
) -> ir.Model:
    """A model that computes ``outputs`` by running ``pieces`` in their order.

    Inputs and outputs are parts of tensors, called as `tensor_part` says. A piece that is whole
    keeps its nodes as they are; of a part, the nodes keep their padding at the tensor's own borders
    only. Parts that a piece reads are cut out of and joined from those that are there.

    Args:
        model: is not changed.
        pieces: none twice.
        outputs: what to compute, at least one, each once.
        inputs: the parts that come from outside, in the order of the new model's inputs; by
            default what `segment_inputs` finds.

    Raises:
        PlanError: a piece is impossible, given twice or behind one that reads it; an output lies
            outside of its tensor; or ``inputs`` do not hold what the pieces need.
    """
    if inputs is None:
        inputs = segment_inputs(model.graph, pieces, outputs)
    parts = Parts(model)
    given = [parts.keep(name, region, parts.value(name, region)) for name, region in inputs]
    for piece in pieces:
        _add_piece(parts, model, piece)
    results = [parts.get(name, region) for name, region in outputs]
    graph = ir.Graph(
        given,
        results,
        nodes=parts.nodes,
        initializers=tuple(parts.constants.values()),
        opset_imports=dict(model.source.graph.opset_imports),
        name=f"{model.graph.name}: {pieces[0]}" if pieces else model.graph.name,
    )
    return ir.Model(
        graph,
        ir_version=model.source.ir_version,
        producer_name="coexec",
        functions=tuple(model.source.functions.values()),
    )


def segment_inputs(
    graph: Graph, pieces: Sequence[Piece], outputs: Sequence[tuple[str, Region]] = ()
) -> tuple[tuple[str, Region], ...]:
    """The parts of tensors that ``pieces`` need and none of them computes, in order of need.

    Raises:
        PlanError: a piece is impossible, or needs what a later one in the list computes.
    """
    computed: dict[str, list[Region]] = {}
    found: dict[tuple[str, Region], None] = {}

    def need(name: str, region: Region) -> None:
        if not graph.tensors[name].constant:
            boxes = missing(region, computed.get(name, ()))
            found.update({(name, box): None for box in boxes})

    for piece in pieces:
        task = _task(graph, piece)
        for name, region in needed_inputs(graph, task, piece.region).items():
            need(name, region)
        for name in task.outputs:
            main = name == task.outputs[0]
            part = piece.region if main else graph.tensors[name].whole
            computed.setdefault(name, []).append(part)
    for name, region in found:
        if missing(region, computed.get(name, ())) != (region,):
            raise PlanError(
                f"a piece reads {tensor_part(name, region, graph)} before a later piece of the "
                f"same segment computes it; list the pieces in the order in which they run"
            )
    for name, region in outputs:
        need(name, region)
    return tuple(found)


def _task(graph: Graph, piece: Piece) -> Task:
    if piece.task not in graph.task:
        raise PlanError(
            f"piece {piece} is of no task of the model {graph.name!r}; plan for this model again"
        )
    return graph.task[piece.task]


def _add_piece(parts: Parts, model: Model, piece: Piece) -> None:
    task = _task(model.graph, piece)
    if piece.region in parts.has(task.outputs[0]):
        raise PlanError(
            f"the segment computes {piece} twice, or gets as an input what it computes; "
            f"list each piece once"
        )
    if piece.region == model.graph.output_of(task).whole:
        _add_whole(parts, model, task)
    else:
        _add_part(parts, model, task, piece.region)


def _add_whole(parts: Parts, model: Model, task: Task) -> None:
    """Copy the nodes of ``task`` as they are."""
    tensors = model.graph.tensors
    names = (*task.inputs, *task.weights)
    values = {name: parts.get(name, tensors[name].whole) for name in names}
    for op in task.operators:
        node = _node(model, op)
        outputs = [_unattached(value) for value in node.outputs]
        reads = [values[v.name] if v is not None and v.name else None for v in node.inputs]
        attributes = [_own_bodies(a, values, model) for a in node.attributes.values()]
        parts.nodes.append(_like(node, reads, attributes, outputs, node.name))
        values |= {v.name: v for v in outputs if v.name}
    for name in task.outputs:
        parts.keep(name, tensors[name].whole, values[name])


def _add_part(parts: Parts, model: Model, task: Task, region: Region) -> None:
    """Write the nodes of ``task`` for a part of its output."""
    for name, needed in needed_inputs(model.graph, task, region).items():
        if needed.size:
            parts.get(name, needed)  # at once what several operators of the task read pieces of
    for op, part in zip(task.operators, operator_regions(model.graph, task, region), strict=True):
        if part.output not in parts.has(op.outputs[0]):  # else shared with another piece
            result = _add_operator(parts, _node(model, op), op, part)
            parts.keep(op.outputs[0], part.output, result)


def _add_operator(parts: Parts, node: ir.Node, op: Operator, part: OperatorRegion) -> ir.Value:
    result = parts.value(op.outputs[0], part.output)
    reads: list[ir.Value | None] = []
    for position, (name, needed) in enumerate(zip(op.inputs, part.inputs, strict=True)):
        if position in part.constants:
            label = f"{result.name} input {position}"
            reads.append(parts.constant(label, part.constants[position]))
        elif needed is None:
            reads.append(None)
        elif needed.size:
            reads.append(parts.get(name, needed))
    changed = {key: value for key, value in part.attributes.items() if value is not None}
    attributes = [a for key, a in node.attributes.items() if key not in part.attributes]
    attributes += ir.convenience.convert_attributes(changed)
    label = f"{node.name}{part.output}"
    if part.computes == part.output:
        parts.nodes.append(_like(node, reads, attributes, [result], label))
        return result
    more = parts.value(op.outputs[0], part.computes, f"{result.name} uncropped")
    parts.nodes.append(_like(node, reads, attributes, [more], label))
    return parts.crop(more, part.computes, result, part.output)


def _node(model: Model, op: Operator) -> ir.Node:
    return model.nodes[next(name for name in op.outputs if name)]


def _like(
    node: ir.Node,
    reads: Sequence[ir.Value | None],
    attributes: Sequence[ir.Attr],
    outputs: Sequence[ir.Value],
    name: str | None,
) -> ir.Node:
    """A node of the same operator as ``node``."""
    return ir.Node(
        node.domain,
        node.op_type,
        reads,
        attributes,
        overload=node.overload,
        outputs=outputs,
        version=node.version,
        name=name,
    )


def _unattached(value: ir.Value) -> ir.Value:
    """A value of the same name, type and shape that no node computes yet."""
    shape = None if value.shape is None else value.shape.copy()
    metadata = dict(value.metadata_props)
    return ir.Value(name=value.name, shape=shape, type=value.type, metadata_props=metadata)


def _own_bodies(attribute: ir.Attr, values: Mapping[str, ir.Value], model: Model) -> ir.Attr:
    """The attribute itself, or with copies of its graphs that capture the new model's values."""
    if attribute.type == ir.AttributeType.GRAPH:
        return ir.AttrGraph(attribute.name, _own_body(attribute.as_graph(), values, model))
    if attribute.type == ir.AttributeType.GRAPHS:
        bodies = [_own_body(body, values, model) for body in attribute.as_graphs()]
        return ir.AttrGraphs(attribute.name, bodies)
    return attribute


def _own_body(body: ir.Graph, values: Mapping[str, ir.Value], model: Model) -> ir.Graph:
    copy = body.clone(allow_outer_scope_values=True)
    for node in copy.all_nodes():
        for position, value in enumerate(node.inputs):
            if value is not None and value.name and model.values.get(value.name) is value:
                node.replace_input_with(position, values[value.name])
    return copy
