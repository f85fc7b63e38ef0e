"""Totals of the memory strategies that are known from elsewhere, and those of our networks.

Golden cases and the table are recomputed from Lee et al. (arXiv:1907.01989), Pisarchyk and Lee
(arXiv:2001.03288) and the rules of TensorFlow Lite's GPU delegate.
"""

from collections.abc import Callable

import pytest

from coexec.model.group import build_graph
from coexec.plan.memory import (
    Record,
    offsets_bound,
    positional_maxima,
    records_of,
    shared_objects_bound,
)
from coexec.research.memory import STRATEGIES, assign_all
from coexec.research.zoo import MODELS, build


def rows(*triples: tuple[int, int, int]) -> list[Record]:
    return [Record(*triple) for triple in triples]


FIVE = rows((32, 0, 1), (8, 1, 3), (4, 2, 4), (8, 3, 4), (64, 4, 5))
CHAIN = rows((16, 0, 1), (8, 1, 2), (64, 2, 3), (32, 3, 4), (8, 4, 5))
NINE = rows(
    (32, 0, 1),
    (32, 1, 4),
    (8, 2, 5),
    (16, 3, 5),
    (8, 4, 5),
    (64, 5, 7),
    (8, 6, 8),
    (8, 7, 8),
    (16, 8, 9),
)


def test_golden_totals() -> None:
    def totals(tensors: list[Record]) -> dict[str, int]:
        return {name: a.total_bytes for name, a in assign_all(tensors).items()}

    five, nine = totals(FIVE), totals(NINE)
    names = ("naive", "greedy_in_order", "min_cost_flow", "offsets_by_size")
    assert [five[name] for name in names] == [116, 104, 84, 76]
    assert [nine[name] for name in names] == [192, 120, 112, 96]
    assert (offsets_bound(FIVE), offsets_bound(NINE)) == (76, 96)
    assert positional_maxima(NINE) == [64, 32, 8, 8]


@pytest.mark.parametrize(
    ("name", "tensors", "object_of", "sizes"),
    [
        ("min_cost_flow", FIVE, (0, 1, 2, 3, 0), (64, 8, 4, 8)),
        ("greedy_in_order", CHAIN, (0, 1, 0, 1, 0), (64, 32)),
        ("min_cost_flow", CHAIN, (0, 1, 0, 1, 0), (64, 32)),
        ("greedy_in_order", NINE, (0, 1, 0, 2, 3, 1, 3, 2, 0), (32, 64, 16, 8)),
        ("min_cost_flow", NINE, (0, 1, 2, 0, 3, 1, 3, 2, 0), (32, 64, 8, 8)),
    ],
)
def test_golden_objects(
    name: str, tensors: list[Record], object_of: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    found = STRATEGIES[name](tensors)
    assert (found.object_of, found.sizes) == (object_of, sizes)


# Totals of known networks


class Layers:
    """Operations in order: what each makes, and until which one it is needed."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.last: list[int] = []

    def add(self, side: int, channels: int, *reads: int) -> int:
        """An operation that reads those of index ``reads``, by default the one before."""
        position = len(self.items)
        for read in reads or [position - 1] * (position > 0):
            self.last[read] = position
        self.items.append(side * side * channels)
        self.last.append(position)
        return position

    def records(self) -> list[Record]:
        spans = enumerate(zip(self.items, self.last, strict=True))
        return [Record(4 * items, first, last) for first, (items, last) in spans]


def mobilenet_v1() -> Layers:
    net, side = Layers(), 112
    net.add(side, 32)
    channels = 32
    for wider, stride in [
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *[(512, 1)] * 5,
        (1024, 2),
        (1024, 1),
    ]:
        side //= stride
        net.add(side, channels)
        channels = wider
        net.add(side, channels)
    head(net, channels)
    return net


def mobilenet_v2(fused: bool = False) -> Layers:
    """``fused``: the addition of a residual is part of the convolution before it."""
    net, side, channels = Layers(), 112, 32
    x = net.add(side, channels)
    for factor, wider, repeats, stride in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]:
        for repeat in range(repeats):
            if factor > 1:
                net.add(side, channels * factor)
            side //= 1 if repeat else stride
            y = net.add(side, channels * factor)
            if not repeat:
                x = net.add(side, wider)
            elif fused:
                x = net.add(side, wider, y, x)
            else:
                x = net.add(side, wider, net.add(side, wider), x)
            channels = wider
    net.add(side, 1280)
    head(net, 1280)
    return net


def head(net: Layers, channels: int) -> None:
    """Pooling, the last convolution, and its result without height and width (Squeeze)."""
    for width in (channels, 1000, 1000):
        net.add(1, width)


def vgg16() -> Layers:
    net, side = Layers(), 224
    for channels, depth in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(depth):
            net.add(side, channels)
        side //= 2
        net.add(side, channels)
    for width in (4096, 4096, 1000):
        net.add(1, width)
    return net


COLUMNS = (
    "naive",
    "greedy_in_order",
    "min_cost_flow",
    "by_breadth",
    "by_size_improved",
    "shared_objects_bound",
    "offsets_by_size",
    "offsets_bound",
)


def mib(tensors: list[Record]) -> tuple[str, ...]:
    """The row of a table whose columns are `COLUMNS`."""
    totals = {name: a.total_bytes for name, a in assign_all(tensors).items()}
    totals["shared_objects_bound"] = shared_objects_bound(tensors)
    totals["offsets_bound"] = offsets_bound(tensors)
    return tuple(f"{totals[column] / 2**20:.3f}" for column in COLUMNS)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (mobilenet_v1, "19.248 4.594 5.359 4.594 4.594 4.594 4.594 4.594"),
        (mobilenet_v2, "26.313 8.039 7.513 6.891 6.699 6.604 5.742 5.742"),
        (vgg16, "57.553 24.500 27.562 27.562 24.500 24.500 24.500 24.500"),
    ],
)
def test_known_totals(network: Callable[[], Layers], expected: str) -> None:
    """float32, batch 1, activations fused, additions not; input and softmax left out."""
    assert mib(network().records()) == tuple(expected.split())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mobilenet_v1", "19.248 4.594 5.359 4.594 4.594 4.594 4.594 4.594"),
        ("mobilenet_v2", "25.489 8.039 7.273 6.699 6.891 6.604 5.742 5.742"),
        ("vgg16", "57.744 24.500 27.562 27.562 24.500 24.500 24.500 24.500"),
    ],
)
def test_totals_of_our_graphs(name: str, expected: str) -> None:
    """Additions are fused in ours; and Flatten makes a tensor, in VGG-16 a pool of 1x1 another."""
    graph = build_graph(build(name), name)
    assert mib(list(records_of(graph).values())) == tuple(expected.split())


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("mobilenet_v1", mobilenet_v1().items[:-1]),  # without the last Squeeze
        ("mobilenet_v2", mobilenet_v2(fused=True).items[:-1]),
        ("vgg16", vgg16().items),
    ],
)
def test_networks_of_the_table_are_those_of_the_zoo(name: str, items: list[int]) -> None:
    graph = build_graph(build(name), name)
    same = {"AveragePool", "Flatten", "Reshape"}  # give what they get; the pool is VGG-16's, 1x1
    made = [graph.output_of(task).size_bytes for task in graph.tasks if task.kind not in same]
    assert made == [4 * n for n in items]


@pytest.mark.parametrize("name", MODELS)
def test_networks_of_the_zoo_stay_near_the_bounds(name: str) -> None:
    tensors = list(records_of(build_graph(build(name), name)).values())
    found = assign_all(tensors)
    assert found["offsets_by_size"].total_bytes == offsets_bound(tensors)
    assert found["by_size_improved"].total_bytes <= 1.2 * shared_objects_bound(tensors)
