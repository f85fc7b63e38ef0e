"""The graph of tasks of a model: operators that are always fused become one task.

Operators that ONNX Runtime fuses are marked (`coexec.model.fused`) and stay together. The rules
here hold for every engine, and for the operators that ONNX Runtime fuses only in its blocked
layout.

A group starts at an operator with weights (convolution, matrix product) and takes the chain of
element-wise operators behind it, as long as each is the only reader of its predecessor: activation
and the addition of a residual. An addition joins the later of its producers that fit, so that the
task of the earlier one does not have to wait for the later one. An addition without a fitting
producer takes the activations behind it. A Pad joins the convolution or pool that is its only
reader. These are HOPE's super-ops, and the groups that ONNX Runtime's optimizer fuses. Operators
that pass values which cannot be planned are one opaque task (`opaque`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from coexec.graph.graph import Graph, Operator, Task, Tensor
from coexec.graph.rules import operator_macs
from coexec.graph.signature import signature_of
from coexec.model.fused import marked_groups
from coexec.model.opaque import content_of, live, reads, united
from coexec.model.operators import operator_of
from coexec.model.tensors import tensors_of, why_opaque

_HEADS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_ACTIVATIONS = frozenset(
    {"Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid", "Tanh"}
)
_RESIDUALS = frozenset({"Add", "Sum"})
_PADDED = frozenset({"AveragePool", "Conv", "MaxPool"})


def build_graph(model: ir.Model, name: str, whole: str = "") -> Graph:
    """Group the nodes of ``model`` into tasks.

    Args:
        model: with all known types and shapes of its values.
        name: name of the graph.
        whole: why all of the model is to be one opaque task; "" if it is not.

    Raises:
        ModelError: a weight has no values.
    """
    nodes, read = live(model)
    tensors = {t.name: t for t in tensors_of(model, read)}
    reasons = {v: why_opaque(v) for v in read if v.name and tensors[v.name].opaque}
    groups = [(nodes, whole)] if whole and nodes else _groups(nodes, reasons)
    outputs = tuple(v.name for v in model.graph.outputs if v.name)
    leaving = _leaving([group for group, _ in groups], outputs)
    tasks = tuple(_task(group, why, tensors, leaving, model) for group, why in groups)
    used = {name for task in tasks for name in (*task.inputs, *task.weights, *task.outputs)}
    inputs = tuple(v.name for v in model.graph.inputs if v.name)
    used.update(inputs)
    used.update(outputs)
    used.update(name for task in tasks for op in task.operators for name in op.outputs)
    return Graph(
        name=name,
        tensors={n: t for n, t in tensors.items() if n in used},
        tasks=_topological(tasks),
        inputs=inputs,
        outputs=outputs,
    )


def _leaving(groups: Sequence[Sequence[ir.Node]], outputs: Iterable[str]) -> set[str]:
    """The outputs of the model, and the values that one group makes and another reads."""
    group_of = {node: n for n, group in enumerate(groups) for node in group}
    names = set(outputs)
    for node, n in group_of.items():
        for value in reads(node):
            maker = value.producer()
            if value.name and maker is not None and group_of[maker] != n:
                names.add(value.name)
    return names


def _groups(
    nodes: Sequence[ir.Node], opaque: Mapping[ir.Value, str]
) -> list[tuple[list[ir.Node], str]]:
    """The nodes of each task, with the reason if the task is opaque."""
    position = {node: i for i, node in enumerate(nodes)}
    touched = {node for node in nodes if any(v in opaque for v in (*reads(node), *node.outputs))}
    marked = marked_groups(nodes)
    group_of = {node: g for node, g in marked.items() if touched.isdisjoint(g)}
    for node in nodes:
        if node in touched:
            continue
        before = _joins(node, position, group_of)
        group = group_of.setdefault(node, [] if before is None else group_of[before])
        if node not in group:
            group.append(node)
        elif before is not None and node.op_type in _PADDED and group_of[before] == [before]:
            group.insert(0, before)
            group_of[before] = group
    alone = {node: [node] for node in touched}
    grouped = group_of | alone
    distinct = list({id(grouped[node]): grouped[node] for node in nodes}.values())
    if not opaque:
        return [(group, "") for group in distinct]
    tasks = [
        (g, _reason(g, opaque) if why else "") for g, why in united(distinct, opaque, position)
    ]
    return sorted(tasks, key=lambda row: position[row[0][0]])


def _reason(group: Sequence[ir.Node], opaque: Mapping[ir.Value, str]) -> str:
    """Why the first opaque value that ``group`` reads or makes is opaque."""
    values = (v for node in group for v in (*reads(node), *node.outputs))
    return next(opaque[value] for value in values if value in opaque)


def _joins(
    node: ir.Node, position: Mapping[ir.Node, int], group_of: Mapping[ir.Node, list[ir.Node]]
) -> ir.Node | None:
    """The node before ``node`` whose group it joins: the latest that fits; None if none does."""
    if node.domain or len(node.outputs) != 1:
        return None
    makers = {v.producer() for v in node.inputs if v is not None}
    producers = {p for p in makers if p is not None and p in group_of}
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
    """Whether one node reads it, once, and it is no output of the model."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def _task(
    group: Sequence[ir.Node],
    opaque: str,
    tensors: Mapping[str, Tensor],
    leaving: Collection[str],
    model: ir.Model,
) -> Task:
    """The task of a group: ordinary if ``opaque`` is "", else opaque for this reason."""
    operators = tuple(operator_of(node) for node in group)
    inside = {name for op in operators for name in op.outputs}
    values = {v.name: v for node in group for v in reads(node) if v.name and v.name not in inside}
    constants = {n: v.const_value for n, v in values.items() if tensors[n].constant}
    weights = {n: tensor for n, tensor in constants.items() if tensor is not None}
    inputs = tuple(n for n in values if n not in weights)
    if opaque:
        outputs = tuple(n for op in operators for n in op.outputs if n in leaving)
        read, functions = [tensors[name] for name in inputs], model.functions.values()
        signature = f"opaque {content_of(group, read, weights, functions)}"
        counted = [op for op in operators if _is_known(op, tensors)]
    else:
        outputs = tuple(n for n in operators[-1].outputs if n in tensors)
        signature = signature_of(operators, tensors)
        counted = list(operators)
    return Task(
        name=group[0].name or next(n for n in (*outputs, *operators[0].outputs) if n),
        operators=operators,
        inputs=inputs,
        weights=tuple(weights),
        outputs=outputs,
        signature=signature,
        macs=sum(operator_macs(op, tensors) for op in counted),
        opaque=opaque,
    )


def _is_known(op: Operator, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the inputs and the main output of an operator are plain, so that its work can be
    counted."""
    operands = [tensors.get(name) for name in (*op.inputs, *op.outputs[:1]) if name]
    return all(tensor is not None and not tensor.opaque for tensor in operands)


def _topological(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Sort tasks by their last operator: a residual addition moves its task behind the other
    producer."""
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
