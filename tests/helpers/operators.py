"""Graphs of one task, built without a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from coexec.graph.graph import Graph, Operator, Task, Tensor
from coexec.graph.receptive import needed_inputs, operator_regions, splittable_axes
from coexec.graph.region import Region
from coexec.graph.rules import OperatorRegion

Shape = tuple[int, ...]
Ranges = Mapping[int, tuple[int, int]]


def operator(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[int, tuple[Any, ...]] | None = None,
    domain: str = "",
    **attributes: Any,
) -> Operator:
    return Operator(op_type, tuple(inputs), tuple(outputs), attributes, constants or {}, domain)


def graph_of(operators: Sequence[Operator], **shapes: Shape) -> Graph:
    """A graph with the one task "task" of ``operators``; tensors named w... are constants."""
    tensors = {n: Tensor(n, s, "float32", n.startswith("w")) for n, s in shapes.items()}
    made = {name for op in operators for name in op.outputs}
    read = list(dict.fromkeys(n for op in operators for n in op.inputs if n and n not in made))
    outputs = tuple(n for n in operators[-1].outputs if n in tensors)
    activations = tuple(n for n in read if not tensors[n].constant)
    weights = tuple(n for n in read if tensors[n].constant)
    task = Task("task", tuple(operators), activations, weights, outputs, "signature", 0)
    return Graph("test", tensors, (task,), activations, outputs)


def cut(graph: Graph, ranges: Ranges) -> Region:
    """The region of the main output that has these ranges, by axis."""
    region = graph.output_of(graph.tasks[0]).whole
    for axis, (start, stop) in ranges.items():
        region = region.with_axis(axis, start, stop)
    return region


def needs(graph: Graph, ranges: Ranges) -> dict[str, str]:
    regions = needed_inputs(graph, graph.tasks[0], cut(graph, ranges))
    return {name: str(region) for name, region in regions.items()}


def parts(graph: Graph, ranges: Ranges) -> tuple[OperatorRegion, ...]:
    return operator_regions(graph, graph.tasks[0], cut(graph, ranges))


def axes(graph: Graph) -> tuple[int, ...]:
    return splittable_axes(graph, graph.tasks[0])


def conv(
    output: tuple[int, ...], weight: tuple[int, ...] = (6, 4, 3, 3), **attributes: Any
) -> Graph:
    """A convolution with bias on 8 x 8 pixels; the weight gives the number of channels."""
    groups = attributes.get("group", 1)
    assert isinstance(groups, int)
    op = operator("Conv", ["x", "w", "wb"], **attributes)
    return graph_of([op], x=(1, weight[1] * groups, 8, 8), w=weight, wb=weight[:1], y=output)


def pool(kind: str, output: int, **attributes: Any) -> Graph:
    return graph_of([operator(kind, ["x"], **attributes)], x=(2, 3, 8, 8), y=(2, 3, output, output))


def fused() -> Graph:
    operators = [
        operator("Conv", ["x", "w"], ["a"], pads=(1, 1, 1, 1)),
        operator("Add", ["a", "z"], ["b"]),
        operator("Relu", ["b"], ["y"]),
    ]
    shapes = dict.fromkeys(("z", "a", "b", "y"), (1, 6, 8, 8))
    return graph_of(operators, x=(1, 4, 8, 8), w=(6, 4, 3, 3), **shapes)


def pad(mode: str, pads: tuple[int, int], size: int = 8) -> Graph:
    op = operator("Pad", ["x", "w"], constants={1: (0, pads[0], 0, pads[1])}, mode=mode)
    return graph_of([op], x=(2, size), w=(4,), y=(2, size + sum(pads)))


def resize(scale: tuple[float, ...], output: tuple[int, ...], **attributes: Any) -> Graph:
    op = operator("Resize", ["x", "", "w"], constants={2: scale}, **attributes)
    return graph_of([op], x=(1, 4, 6), w=(3,), y=output)
