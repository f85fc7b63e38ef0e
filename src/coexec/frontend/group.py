"""The graph of tasks of a simplified model: operators that are always fused become one task.

What ONNX Runtime fuses is marked (`frontend.fused`) and stays together. The rules here hold for
every engine, and for what ONNX Runtime fuses in its blocked layout alone.

A group starts at an operator with weights (convolution, matrix product) and takes the chain of
element-wise operators behind it, as long as each is the only reader of the one before: activation
and the addition of a residual. An addition joins the later of its producers that fit, so that the
other one never waits; one that none fits takes the activations behind it. A Pad joins the
convolution or pool that alone reads it. These are HOPE's super-ops, and what ONNX Runtime's
optimizer fuses.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from coexec.errors import ModelError
from coexec.frontend.fused import marked_groups
from coexec.frontend.tensors import label, tensors_of
from coexec.ir.flops import operator_macs
from coexec.ir.graph import Graph, Operator, Scalars, Task, Tensor

__all__ = ["build_graph", "only_read", "operator_of"]

_HEADS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_ACTIVATIONS = frozenset(
    {"Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid", "Tanh"}
)
_RESIDUALS = frozenset({"Add", "Sum"})
_PADDED = frozenset({"AveragePool", "Conv", "MaxPool"})
_SMALL = 64
"""Constants of at most this many elements may decide shapes (pads, axes, sizes)."""


def build_graph(model: ir.Model, name: str) -> Graph:
    """Group the nodes of ``model`` into tasks.

    Raises:
        ModelError: a shape or dtype is unknown, or a node has no output.
    """
    tensors = {t.name: t for t in tensors_of(model)}
    nodes = list(model.graph)
    tasks = tuple(_task(group, tensors) for group in _groups(nodes, model))
    used = {name for task in tasks for name in (*task.inputs, *task.weights, *task.outputs)}
    inputs = tuple(v.name for v in model.graph.inputs if v.name)
    used.update(inputs)
    used.update(v.name for v in model.graph.outputs if v.name)
    used.update(name for task in tasks for op in task.operators for name in op.outputs)
    return Graph(
        name=name,
        tensors={n: t for n, t in tensors.items() if n in used},
        tasks=_topological(tasks),
        inputs=inputs,
        outputs=tuple(v.name for v in model.graph.outputs if v.name),
    )


def _groups(nodes: list[ir.Node], model: ir.Model) -> list[list[ir.Node]]:
    """Runs of nodes that become one task each."""
    position = {node: i for i, node in enumerate(nodes)}
    group_of = marked_groups(nodes)
    for node in nodes:
        before = _joins(node, position, group_of)
        group = group_of.setdefault(node, [] if before is None else group_of[before])
        if node not in group:
            group.append(node)
        elif before is not None and node.op_type in _PADDED and group_of[before] == [before]:
            group.insert(0, before)
            group_of[before] = group
    distinct = {id(group_of[node]): group_of[node] for node in nodes}
    return list(distinct.values())


def _joins(
    node: ir.Node, position: Mapping[ir.Node, int], group_of: Mapping[ir.Node, list[ir.Node]]
) -> ir.Node | None:
    """The node before ``node`` whose group it joins: the latest that fits."""
    if node.domain or len(node.outputs) != 1:
        return None
    producers = {p for v in node.inputs if v is not None and (p := v.producer()) is not None}
    if node.op_type in _PADDED:
        fitting = [p for p in producers if p.op_type == "Pad" and only_read(p.outputs[0])]
    elif node.op_type in _ACTIVATIONS | _RESIDUALS:
        fitting = [p for p in producers if _extends(p, node, group_of[p])]
    else:
        return None
    return max(fitting, key=position.__getitem__, default=None)


def _extends(before: ir.Node, node: ir.Node, group: list[ir.Node]) -> bool:
    """Whether element-wise ``node`` continues the group that ends with ``before``."""
    value, result = before.outputs[0], node.outputs[0]
    heads = _HEADS | _RESIDUALS if node.op_type in _ACTIVATIONS else _HEADS
    return (
        any(n.op_type in heads for n in group)
        and group[-1] is before
        and only_read(value)
        and value.shape == result.shape
        and value.dtype == result.dtype
    )


def only_read(value: ir.Value) -> bool:
    """Whether one node reads it, once, and nobody else."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def _task(group: list[ir.Node], tensors: Mapping[str, Tensor]) -> Task:
    operators = tuple(operator_of(node) for node in group)
    inside = {name for op in operators for name in op.outputs}
    read = {n: None for op in operators for n in op.inputs if n and n not in inside}
    read |= {n: None for node in group for n in _captured(node)}
    weights = tuple(n for n in read if tensors[n].constant)
    outputs = tuple(n for n in operators[-1].outputs if n in tensors)
    if not outputs:
        raise ModelError(f"{label(group[-1])} has no output that anything reads; remove it")
    return Task(
        name=group[0].name or outputs[0],
        operators=operators,
        inputs=tuple(n for n in read if not tensors[n].constant),
        weights=weights,
        outputs=outputs,
        signature=_signature(operators, tensors, inside),
        macs=sum(operator_macs(op, tensors) for op in operators),
    )


def _captured(node: ir.Node) -> list[str]:
    """Names of outer values that the bodies of an If, Loop or Scan read."""
    names: list[str] = []
    for attribute in node.attributes.values():
        if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        bodies = attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else [
            attribute.as_graph()]  # fmt: skip
        for body in bodies:
            own = {id(v) for v in body.inputs} | {id(v) for v in body.initializers.values()}
            own |= {id(v) for inner in body for v in inner.outputs}
            reads = [v for inner in body for v in inner.inputs if v is not None]
            names += [v.name for v in [*reads, *body.outputs] if id(v) not in own and v.name]
            made = {v.name for inner in body for v in inner.outputs} | {v.name for v in body.inputs}
            names += [n for inner in body for n in _captured(inner) if n not in made]
    return names


def operator_of(node: ir.Node) -> Operator:
    """``node`` as the shape rules and kernels see it. Its graph tells the operator set."""
    versions = {} if node.graph is None else node.graph.opset_imports
    return Operator(
        op_type=node.op_type,
        inputs=tuple((v.name or "") if v is not None else "" for v in node.inputs),
        outputs=tuple(v.name or "" for v in node.outputs),
        attributes={a.name: v for a in node.attributes.values() if (v := _scalars(a)) is not None},
        constants={
            i: tuple(values.flatten().tolist())
            for i, v in enumerate(node.inputs)
            if (values := _small_constant(v)) is not None
        },
        domain=node.domain,
        version=versions.get(node.domain, 0),
    )


def _scalars(attribute: ir.Attr) -> Scalars | None:
    kind = ir.AttributeType
    if attribute.type in (kind.INT, kind.FLOAT, kind.STRING):
        value: Scalars = attribute.value
        return value
    if attribute.type in (kind.INTS, kind.FLOATS, kind.STRINGS):
        return tuple(attribute.value)
    return None


def _small_constant(value: ir.Value | None) -> np.ndarray | None:
    tensor = None if value is None else value.const_value
    if tensor is None or tensor.size > _SMALL or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy()


def _signature(
    operators: tuple[Operator, ...], tensors: Mapping[str, Tensor], inside: set[str]
) -> str:
    """Text that is equal for tasks of equal cost; names of tensors do not appear in it."""
    parts = []
    for op in operators:
        shapes = [
            "_" if not n else "." if n in inside else _shape_text(tensors[n]) for n in op.inputs
        ]
        settings = [f"{k}={_plain(v)}" for k, v in sorted(op.attributes.items())]
        settings += [
            f"{i}:{_plain(v)}" for i, v in sorted(op.constants.items()) if op.op_type in _BY_VALUE
        ]
        kind = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
        parts.append(f"{kind}({', '.join(shapes)}){{{', '.join(settings)}}}")
    outputs = [_shape_text(tensors[n]) for n in operators[-1].outputs if n in tensors]
    return " + ".join(parts) + " -> " + ", ".join(outputs)


_BY_VALUE = frozenset({"Pad", "Slice", "Resize", "Upsample", "Reshape", "Expand", "Tile", "Split",
                       "Squeeze", "Unsqueeze", "TopK", "OneHot", "Range",
                       "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})  # fmt: skip
"""Operators whose constant inputs decide shapes; elsewhere they are weights."""


def _plain(value: Scalars) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shape_text(tensor: Tensor) -> str:
    shape = "x".join(map(str, tensor.shape))
    return shape if tensor.dtype == "float32" else f"{shape}:{tensor.dtype}"


def _topological(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Sort by last operator: a residual addition moves its task behind the other producer."""
    producer = {name: i for i, task in enumerate(tasks) for name in task.outputs}
    before = [{producer[n] for n in task.inputs if n in producer} for task in tasks]
    done: dict[int, None] = {}
    stack = list(range(len(tasks) - 1, -1, -1))
    while stack:
        missing = [i for i in before[stack[-1]] if i not in done]
        if missing:
            stack += missing
        else:
            done[stack.pop()] = None
    return tuple(tasks[i] for i in done)
