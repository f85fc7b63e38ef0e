"""Small random networks of many operators, and random cuts of their tasks into pieces."""

from collections.abc import Callable, Collection, Iterable
from itertools import pairwise, product
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.receptive import splittable_axes
from coexec.graph.region import Region
from coexec.model.model import Model
from tests.helpers.onnx_models import direct, tensor

Draw = Callable[[st.SearchStrategy[Any]], Any]
Shape = tuple[int, int, int, int]


class _Network:
    """A network under construction: layers on NCHW tensors; each layer reads existing tensors."""

    def __init__(self, draw: Draw, shape: Shape, filters: st.SearchStrategy[int]) -> None:
        self.draw, self.filters = draw, filters
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.shapes: dict[str, Shape] = {"x": shape}

    def pick(self, shape: Shape | None = None, without: Collection[str] = ()) -> str:
        fits = [
            name
            for name, other in self.shapes.items()
            if shape in (None, other) and name not in without
        ]
        picked: str = self.draw(st.sampled_from(fits))
        return picked

    def add(self, op_type: str, reads: list[str], shape: Shape, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        node = helper.make_node(op_type, reads, [name], name=f"{op_type}{name}", **attributes)
        self.nodes.append(node)
        self.shapes[name] = shape
        return name

    def weight(self, *values: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values)
        return name

    def conv(self) -> None:
        x = self.pick()
        n, c, h, w = self.shapes[x]
        k, s = self.draw(st.integers(1, min(3, h, w))), self.draw(st.integers(1, 2))
        p, out = self.draw(st.integers(0, k // 2)), self.draw(self.filters)
        values = np.random.default_rng(out).standard_normal((out, c, k, k)) / (k * c)
        name = f"w{len(self.weights)}"
        self.weights[name] = values.astype(np.float32)
        shape = (n, out, (h + 2 * p - k) // s + 1, (w + 2 * p - k) // s + 1)
        y = self.add("Conv", [x, name], shape, strides=[s, s], pads=[p] * 4)
        if self.draw(st.booleans()):
            y = self.add("Add", [y, self.pick(shape)], shape)
        if self.draw(st.booleans()):
            self.add("Relu", [y], shape)

    def pool(self) -> None:
        # ONNX Runtime 1.31 fuses a Pad with a following pool. It does so even if the padding is as
        # large as the window, which it then refuses, and if a padded zero is the maximum of a
        # MaxPool's window.
        x = self.pick(without={n.output[0] for n in self.nodes if n.op_type == "Pad"})
        n, c, h, w = self.shapes[x]
        kind = self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        k = self.draw(st.integers(1, min(3, h, w)))
        shape = (n, c, (h + 2 * (k // 2) - k) // 2 + 1, (w + 2 * (k // 2) - k) // 2 + 1)
        pads = [k // 2] * 4
        self.add(kind, [x], shape, kernel_shape=[k, k], strides=[2, 2], pads=pads)

    def concat(self) -> None:
        x = self.pick()
        n, c, h, w = self.shapes[x]
        fits = [o for o, (n2, _, h2, w2) in self.shapes.items() if (n2, h2, w2) == (n, h, w)]
        further = self.draw(st.lists(st.sampled_from(fits), max_size=2))
        channels = sum(self.shapes[o][1] for o in further)
        self.add("Concat", [x, *further], (n, c + channels, h, w), axis=1)

    def pad(self) -> None:
        x = self.pick()
        n, c, h, w = self.shapes[x]
        top, left = self.draw(st.integers(0, 2)), self.draw(st.integers(0, 2))
        pads = self.weight(0, 0, top, left, 0, 0, 1, 1)
        self.add("Pad", [x, pads], (n, c, h + top + 1, w + left + 1))

    def resize(self) -> None:
        x = self.pick()
        n, c, h, w = self.shapes[x]
        sizes = self.weight(n, c, 2 * h, 2 * w)
        mode = self.draw(st.sampled_from(["nearest", "linear"]))
        self.add("Resize", [x, "", "", sizes], (n, c, 2 * h, 2 * w), mode=mode)

    def turn(self) -> None:
        x = self.pick()
        n, c, h, w = self.shapes[x]
        self.add("Transpose", [x], (n, c, w, h), perm=[0, 1, 3, 2])

    def gate(self) -> None:
        """Squeeze and excitation without the excitation."""
        x = self.pick()
        n, c, _, _ = self.shapes[x]
        y = self.add("GlobalAveragePool", [x], (n, c, 1, 1))
        self.add("Mul", [x, y], self.shapes[x])

    def split(self) -> None:
        """A task with two outputs, of which only whole pieces are possible."""
        x = self.pick()
        n, c, h, w = self.shapes[x]
        y = self.add("Concat", [x, x], (n, c, 2 * h, w), axis=2)
        joined = self.add("Pad", [y, self.weight(0, 0, 1, 0, 0, 0, 0, 0)], (n, c, 2 * h + 1, w))
        parts = self.weight(h + 1, h)
        name = f"t{len(self.nodes)}"
        node = helper.make_node("Split", [joined, parts], [name, f"{name}b"], name=name, axis=2)
        self.nodes.append(node)
        self.shapes |= {name: (n, c, h + 1, w), f"{name}b": (n, c, h, w)}


_LAYERS = ["conv", "conv", "conv", "pool", "concat", "pad", "resize", "turn", "gate", "split"]


FEW = st.integers(1, 4)
BLOCKS = st.sampled_from([4, 8, 12, 16, 20, 24, 32])
"""Numbers of filters with which engines store results in blocks of channels, full or not."""


@st.composite
def networks(draw: Draw, filters: st.SearchStrategy[int] = FEW) -> Model:
    """A network with the input "x"; tensors without a reader are its outputs.

    Args:
        filters: the number of filters of a convolution.
    """
    shape = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        *(draw(st.integers(4, 9)) for _ in "hw"),
    )
    network = _Network(draw, shape, filters)
    for layer in draw(st.lists(st.sampled_from(_LAYERS), min_size=1, max_size=6)):
        if max(network.shapes[name][2] for name in network.shapes) < 40:
            getattr(network, layer)()
    read = {name for node in network.nodes for name in node.input}
    ends = [name for name in network.shapes if name not in read and name != "x"]
    return direct(network.nodes, [tensor("x", shape)], ends, network.weights)


@st.composite
def pieces_of(draw: Draw, graph: Graph) -> list[Piece]:
    """The pieces of all tasks in order; each task is cut into a grid along some of its axes."""
    return [p for task in graph.tasks for p in _grid(draw, graph, task)]


def _grid(draw: Draw, graph: Graph, task: Task) -> Iterable[Piece]:
    shape = graph.output_of(task).shape
    cut = draw(st.sets(st.sampled_from(splittable_axes(graph, task) or (0,)), max_size=2))
    ranges = []
    for axis, size in enumerate(shape):
        free = axis in cut and axis in splittable_axes(graph, task)
        inner = draw(st.sets(st.integers(1, size - 1), max_size=2)) if free else ()
        edges = [0, *sorted(inner), size]
        ranges.append(list(pairwise(edges)))
    for box in product(*ranges):
        yield Piece(task.name, Region(tuple(a for a, _ in box), tuple(b for _, b in box)))
