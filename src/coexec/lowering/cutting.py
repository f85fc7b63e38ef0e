"""Cuts the nodes of a lowered model by the rules of the operators that they stand for."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

import onnx
import onnx_ir as ir

from coexec.graph.graph import Operator, Scalars, Tensor
from coexec.graph.region import Region
from coexec.graph.rules import RULES, OperatorRegion
from coexec.lowering.lowered import LAYOUT, Lowered, reads
from coexec.model.operators import scalars_of, small_constant

__all__ = ["Uncut", "node_region", "nodes_of"]

_CONV_INPUTS = 3
"""Inputs of the standard operator: data, weights and bias."""


class Uncut(Exception):
    """There is no rule to cut a node of a lowered model."""


def nodes_of(low: Lowered, wanted: Iterable[str], own: Container[str]) -> list[int]:
    """The nodes that compute the tensors ``wanted``, in order. ``own`` are the tensors of the same
    tasks; other tensors of the graph are inputs."""
    indices: set[int] = set()
    stack = [low.native(name) for name in wanted]
    while stack:
        value = stack.pop()
        owner = low.stands_for.get(value)
        if value not in low.maker or (owner is not None and owner not in own):
            continue
        if low.maker[value] not in indices:
            indices.add(low.maker[value])
            stack += [name for name in reads(low.nodes[low.maker[value]]) if name]
    return sorted(indices)


def node_region(low: Lowered, node: onnx.NodeProto, wanted: Region) -> OperatorRegion:
    """The region of ``node`` for the region ``wanted`` of its only output.

    Raises:
        Uncut: there is no rule for it, or the region ends inside of a block.
    """
    kind, dialect = (node.domain, node.op_type), low.dialect
    whole = Region.whole(low.tensors[node.output[0]].shape)
    if not low.layout(node.output[0]).has_whole_blocks(wanted, whole.stop):
        raise Uncut(f"{node.output[0]}{wanted} does not end where blocks end")
    if kind in (dialect.enter, dialect.leave):
        return _relaid(low, node, wanted, whole, left=kind == dialect.leave)
    if node.name.startswith(LAYOUT):
        return _gathered(low, node, wanted, whole)
    like = dialect.like.get(kind) if node.domain else node.op_type
    if like is None or like not in RULES:
        raise Uncut(node.op_type)
    added = node.input[_CONV_INPUTS:] if like == "Conv" else []
    op = _operator(low, node, like, len(node.input) - len(added))
    tensors = _tensors(low, node)
    if wanted == whole:
        inputs = tuple(tensors[n].whole if n else None for n in node.input)
        return OperatorRegion(wanted, wanted, inputs)
    rule = RULES[like]
    cut = {a for a in range(len(whole.stop)) if _range(wanted, a) != _range(whole, a)}
    if not cut <= set(rule.axes(op, tensors)):
        raise Uncut(f"{node.op_type} along {cut}")
    part = rule.cut(op, tensors, wanted)
    return replace(part, inputs=(*part.inputs, *(part.computes if n else None for n in added)))


def _relaid(
    low: Lowered, node: onnx.NodeProto, wanted: Region, whole: Region, *, left: bool
) -> OperatorRegion:
    """The region of an operator that only changes the layout."""
    read = Region.whole(low.tensors[node.input[0]].shape)
    if _range(wanted, 1) == _range(whole, 1):
        region = wanted.with_axis(1, *_range(read, 1))
    elif read == whole:
        region = wanted
    else:
        raise Uncut("channels that are filled up")
    attributes: Mapping[str, Scalars] = {"channels": wanted.shape[1]} if left else {}
    return OperatorRegion(wanted, wanted, (region,), attributes)


def _gathered(low: Lowered, node: onnx.NodeProto, wanted: Region, whole: Region) -> OperatorRegion:
    """The region of the Gather that removes the channels that fill blocks."""
    if node.op_type != "Gather" or _range(wanted, 1) != _range(whole, 1):
        raise Uncut(node.name)
    read = Region.whole(low.tensors[node.input[0]].shape)
    places = Region.whole(tuple(low.weights[node.input[1]].shape.numpy()))
    return OperatorRegion(wanted, wanted, (wanted.with_axis(1, *_range(read, 1)), places))


def _operator(low: Lowered, node: onnx.NodeProto, like: str, count: int) -> Operator:
    """``node`` as the rule of ``like`` sees it, with its first ``count`` inputs."""
    attributes = {a.name: scalars_of(ir.serde.deserialize_attribute(a)) for a in node.attribute}
    constants = {
        i: small_constant(low.weights[name])
        for i, name in enumerate(node.input[:count])
        if name in low.weights
    }
    versions = {o.domain: o.version for o in low.header.opset_import}
    return Operator(
        like,
        tuple(node.input[:count]),
        tuple(node.output),
        {key: value for key, value in attributes.items() if value is not None},
        {i: values for i, values in constants.items() if values is not None},
        version=versions.get("", 0),
    )


def _tensors(low: Lowered, node: onnx.NodeProto) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in (*node.input, *node.output):
        if name in low.weights:
            weight = low.weights[name]
            tensors[name] = Tensor(name, tuple(weight.shape.numpy()), "float32", True)
        elif name in low.tensors:
            tensors[name] = low.tensors[name]
        elif name:
            raise Uncut(f"the shape of {name} is not known")
    return tensors


def _range(region: Region, axis: int) -> tuple[int, int]:
    return region.start[axis], region.stop[axis]
