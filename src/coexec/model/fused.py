"""The operators that ONNX Runtime fuses, derived from the model that it has optimised.

Its extended optimisations keep the names of values, so a value that is missing was inside of a
fused operator. The operators between the remaining values are a *span*: they become one task, and
no plan can cut the engine's operator for it. Spans are written into the metadata of nodes. A model
from the cache contains them, so it need not be optimised again.

A span has one operator whose results leave it, because all its other results are read only inside
of it; a producer that is also read outside stays apart. So spans are convex, and there is no cycle
between them. Where the optimizer has only moved operators (a Transpose past others, say), names are
missing as well; therefore all of a span has to come from one operator that computes something.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.cache import private_folder
from coexec.model.reference_session import save_without_weights
from coexec.ort import OrtSession

_MARK = "coexec.fused"
"""Key of the metadata of nodes; nodes with equal values are one task."""
_MOVING = frozenset(
    {
        "Cast",
        "DequantizeLinear",
        "Flatten",
        "Identity",
        "QuantizeLinear",
        "Reshape",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that compute nothing: the optimizer puts them around fused operators."""


def mark_fused(model: ir.Model) -> None:
    """Mark the nodes of ``model`` that ONNX Runtime fuses; none if it does not run the model.

    Existing marks are removed: they may come from another form of the model.
    """
    for node in model.graph:
        node.metadata_props.pop(_MARK, None)
    try:
        with private_folder() as folder:
            optimised = _optimised(model, folder)
    except Exception:  # a run of the model reports the error; without a disk, only the rules group
        return
    for number, span in enumerate(_spans(model, optimised)):
        for node in span:
            node.metadata_props[_MARK] = str(number)


def marked_groups(nodes: Sequence[ir.Node]) -> dict[ir.Node, list[ir.Node]]:
    """The groups of ``nodes`` that `mark_fused` has marked, in their order, by each member."""
    groups: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if _MARK in node.metadata_props:
            groups.setdefault(node.metadata_props[_MARK], []).append(node)
    return {node: group for group in groups.values() for node in group}


def _optimised(model: ir.Model, folder: Path) -> onnx.GraphProto:
    """The graph of ``model`` after ONNX Runtime's extended optimisations."""
    source, optimised = save_without_weights(model, folder), folder / "optimised.onnx"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(optimised)
    options.add_session_config_entry("session.disable_prepacking", "1")
    OrtSession(str(source), options, providers=["CPUExecutionProvider"])
    return onnx.load(str(optimised), load_external_data=False).graph


def _spans(model: ir.Model, optimised: onnx.GraphProto) -> list[list[ir.Node]]:
    """The operators of each span with several, in the order of the model."""
    maker = {name: node for node in optimised.node for name in node.output if name}
    there = {v.name for v in (*optimised.input, *optimised.initializer)} | maker.keys()
    before = {v.name for node in model.graph for v in node.outputs if v.name}
    position = {node: i for i, node in enumerate(model.graph)}
    spans = []
    for node in model.graph:
        ends = [v.name for v in node.outputs if v.name in maker]
        if ends and _computing(ends, maker, before) <= 1:
            span = _span(node, there)
            if len(span) > 1:
                spans.append(sorted(span, key=position.__getitem__))
    return spans


def _computing(
    ends: Sequence[str | None], maker: Mapping[str, onnx.NodeProto], before: Collection[str]
) -> int:
    """Number of operators that compute something between values of the given model and ``ends``."""
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
    """``end`` and the makers of its inputs, as far back as values are missing and not read
    elsewhere."""
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
