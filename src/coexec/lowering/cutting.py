"""Cuts the nodes of a lowered model by the rules of the operators that they stand for."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

import onnx
import onnx_ir as ir

from coexec.graph.graph import Operator, Scalars, Tensor
from coexec.graph.region import Region
from coexec.graph.rules import RULES, OperatorRegion
from coexec.lowering.lowered_model import LAYOUT, LoweredModel, reads
from coexec.model.operators import scalars_of, small_constant

_CONV_INPUTS = 3
"""Inputs of the standard operator: data, weights and bias."""


class CutError(Exception):
    """There is no rule to cut a node of a lowered model."""


def nodes_of(lowered: LoweredModel, outputs: Iterable[str], own: Container[str]) -> list[int]:
    """The nodes that compute the tensors ``outputs``, in order. ``own`` are the tensors of the same
    tasks; other tensors of the graph are inputs."""
    indices: set[int] = set()
    stack = [lowered.value_of(name) for name in outputs]
    while stack:
        value = stack.pop()
        owner = lowered.tensor_of.get(value)
        if value not in lowered.producer or (owner is not None and owner not in own):
            continue
        if lowered.producer[value] not in indices:
            indices.add(lowered.producer[value])
            stack += [name for name in reads(lowered.nodes[lowered.producer[value]]) if name]
    return sorted(indices)


def node_region(
    lowered: LoweredModel, node: onnx.NodeProto, output_region: Region
) -> OperatorRegion:
    """The region of ``node`` for the region ``output_region`` of its only output.

    Raises:
        CutError: there is no rule for it, or the region ends inside of a block.
    """
    kind, dialect = (node.domain, node.op_type), lowered.dialect
    whole = Region.whole(lowered.tensors[node.output[0]].shape)
    if not lowered.layout_of(node.output[0]).has_whole_blocks(output_region, whole.stop):
        raise CutError(f"{node.output[0]}{output_region} does not end where blocks end")
    if kind in (dialect.enter, dialect.leave):
        return _layout_change(lowered, node, output_region, whole, left=kind == dialect.leave)
    if node.name.startswith(LAYOUT):
        return _padding_removal(lowered, node, output_region, whole)
    like = dialect.like.get(kind) if node.domain else node.op_type
    if like is None or like not in RULES:
        raise CutError(node.op_type)
    added = node.input[_CONV_INPUTS:] if like == "Conv" else []
    op = _operator(lowered, node, like, len(node.input) - len(added))
    tensors = _tensors(lowered, node)
    if output_region == whole:
        inputs = tuple(tensors[n].whole if n else None for n in node.input)
        return OperatorRegion(output_region, output_region, inputs)
    rule = RULES[like]
    cut = {a for a in range(len(whole.stop)) if _range(output_region, a) != _range(whole, a)}
    if not cut <= set(rule.axes(op, tensors)):
        raise CutError(f"{node.op_type} along {cut}")
    part = rule.cut(op, tensors, output_region)
    return replace(part, inputs=(*part.inputs, *(part.computes if n else None for n in added)))


def _layout_change(
    lowered: LoweredModel, node: onnx.NodeProto, output_region: Region, whole: Region, *, left: bool
) -> OperatorRegion:
    """The region of an operator that only changes the layout."""
    read = Region.whole(lowered.tensors[node.input[0]].shape)
    if _range(output_region, 1) == _range(whole, 1):
        region = output_region.with_axis(1, *_range(read, 1))
    elif read == whole:
        region = output_region
    else:
        raise CutError("channels that are padded")
    attributes: Mapping[str, Scalars] = {"channels": output_region.shape[1]} if left else {}
    return OperatorRegion(output_region, output_region, (region,), attributes)


def _padding_removal(
    lowered: LoweredModel, node: onnx.NodeProto, output_region: Region, whole: Region
) -> OperatorRegion:
    """The region of the Gather that removes the channels that fill blocks."""
    if node.op_type != "Gather" or _range(output_region, 1) != _range(whole, 1):
        raise CutError(node.name)
    read = Region.whole(lowered.tensors[node.input[0]].shape)
    index = Region.whole(tuple(lowered.weights[node.input[1]].shape.numpy()))
    return OperatorRegion(
        output_region, output_region, (output_region.with_axis(1, *_range(read, 1)), index)
    )


def _operator(lowered: LoweredModel, node: onnx.NodeProto, like: str, count: int) -> Operator:
    """``node`` as the rule of ``like`` sees it, with its first ``count`` inputs."""
    attributes = {a.name: scalars_of(ir.serde.deserialize_attribute(a)) for a in node.attribute}
    constants = {
        i: small_constant(lowered.weights[name])
        for i, name in enumerate(node.input[:count])
        if name in lowered.weights
    }
    versions = {o.domain: o.version for o in lowered.header.opset_import}
    return Operator(
        like,
        tuple(node.input[:count]),
        tuple(node.output),
        {key: value for key, value in attributes.items() if value is not None},
        {i: values for i, values in constants.items() if values is not None},
        version=versions.get("", 0),
    )


def _tensors(lowered: LoweredModel, node: onnx.NodeProto) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in (*node.input, *node.output):
        if name in lowered.weights:
            weight = lowered.weights[name]
            tensors[name] = Tensor(name, tuple(weight.shape.numpy()), "float32", True)
        elif name in lowered.tensors:
            tensors[name] = lowered.tensors[name]
        elif name:
            raise CutError(f"the shape of {name} is not known")
    return tensors


def _range(region: Region, axis: int) -> tuple[int, int]:
    return region.start[axis], region.stop[axis]
