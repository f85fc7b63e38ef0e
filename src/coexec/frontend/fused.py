"""What ONNX Runtime fuses, found out from the model as it has optimised it.

Its extended optimisations leave values their names, so a value that is gone was inside of something
fused. The operators between the values that remain are a *span*: they become one task, and no plan
can cut what the engine makes of them. Spans are written into the metadata of nodes; a model that
comes from the cache has them there, and nothing has to be optimised again.

A span has one operator whose results leave it, since everything else that it computes is read
inside of it alone; a producer that is also read outside stays apart. So spans are convex, and no
two of them wait for each other. Where the optimizer has only moved operators (a Transpose past
others, say), names are gone as well; therefore all of a span has to come from one operator that
computes something.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.cache.scratch import private_folder
from coexec.frontend.stored import detached
from coexec.ort import OrtSession

__all__ = ["mark_fused", "marked_groups"]

_MARK = "coexec.fused"
"""Key of the metadata of nodes; equal values are one task."""
_CONTENT_BYTES = 1 << 16
"""What is in weights from this size on decides no fusion; they are zeros while it is asked."""
_MOVING = frozenset({"Cast", "DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape",
                     "Squeeze", "Transpose", "Unsqueeze"})  # fmt: skip
"""Operators that compute nothing: the optimizer puts them around what it fuses."""


def mark_fused(model: ir.Model) -> None:
    """Mark in ``model`` what ONNX Runtime fuses; nothing where it does not run the model.

    Marks that it came with are taken off: they may be of another form of it.
    """
    for node in model.graph:
        node.metadata_props.pop(_MARK, None)
    try:
        with private_folder() as folder:
            optimised = _optimised(model, folder)
    except Exception:  # whoever runs the model reports it; where no disk can be written, rules do
        return
    for number, span in enumerate(_spans(model, optimised)):
        for node in span:
            node.metadata_props[_MARK] = str(number)


def marked_groups(nodes: Sequence[ir.Node]) -> dict[ir.Node, list[ir.Node]]:
    """The groups that `mark_fused` has found among ``nodes``, in their order, by each member."""
    groups: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if _MARK in node.metadata_props:
            groups.setdefault(node.metadata_props[_MARK], []).append(node)
    return {node: group for group in groups.values() for node in group}


def _optimised(model: ir.Model, folder: Path) -> onnx.GraphProto:
    """The graph of ``model`` after ONNX Runtime's extended optimisations.

    Large weights refer to a file without content, which takes no room on the disk.
    """
    hollow = model.clone()
    most_bytes = 0
    for name, value in hollow.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING:
            continue
        if tensor.nbytes < _CONTENT_BYTES:
            value.const_value = detached(tensor)
            continue
        most_bytes = max(most_bytes, tensor.nbytes)
        value.const_value = ir.ExternalTensor(
            "zeros", 0, tensor.nbytes, tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()), name=name,
        )  # fmt: skip
    with (folder / "zeros").open("wb") as zeros:
        zeros.truncate(most_bytes)
    given, optimised = folder / "given.onnx", folder / "optimised.onnx"
    onnx.save(ir.to_proto(hollow), str(given))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(optimised)
    options.add_session_config_entry("session.disable_prepacking", "1")
    OrtSession(str(given), options, providers=["CPUExecutionProvider"])
    return onnx.load(str(optimised), load_external_data=False).graph


def _spans(model: ir.Model, optimised: onnx.GraphProto) -> list[list[ir.Node]]:
    """The operators of each span of several, in the order of the model."""
    maker = {name: node for node in optimised.node for name in node.output if name}
    there = {v.name for v in (*optimised.input, *optimised.initializer)} | maker.keys()
    before = {v.name for node in model.graph for v in node.outputs if v.name}
    position = {node: i for i, node in enumerate(model.graph)}
    found = []
    for node in model.graph:
        ends = [v.name for v in node.outputs if v.name in maker]
        if ends and _computing(ends, maker, before) <= 1:
            span = _span(node, there)
            if len(span) > 1:
                found.append(sorted(span, key=position.__getitem__))
    return found


def _computing(
    ends: Sequence[str | None], maker: Mapping[str, onnx.NodeProto], before: Collection[str]
) -> int:
    """How many operators that compute something make ``ends`` from values of the given model."""
    stack = [maker[name] for name in ends if name]
    seen: set[str] = set()
    count = 0
    while stack:
        node = stack.pop()
        label = next(name for name in node.output if name)
        if label in seen:
            continue
        seen.add(label)
        count += node.op_type not in _MOVING
        stack += [maker[n] for n in node.input if n in maker and n not in before]
    return count


def _span(end: ir.Node, there: Collection[str]) -> set[ir.Node]:
    """``end`` and what makes its inputs, as far back as values are gone and not read elsewhere."""
    span, stack = {end}, [end]
    while stack:
        for value in stack.pop().inputs:
            maker = None if value is None else value.producer()
            if maker is None or value is None or value.name in there or maker in span:
                continue
            span.add(maker)
            stack.append(maker)
    while leaving := [n for n in span if n is not end and _is_read_outside(n, span)]:
        span.difference_update(leaving)
    return span


def _is_read_outside(node: ir.Node, span: Collection[ir.Node]) -> bool:
    return any(
        value.is_graph_output() or any(use.node not in span for use in value.uses())
        for value in node.outputs
    )
