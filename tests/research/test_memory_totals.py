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
from coexec.research.memory_strategies import STRATEGIES, assign_all
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


def mobilenet_v2() -> list[Record]:
    """Its additions are operations of their own, as in the papers' table."""
    items, last = list[int](), dict[int, int]()

    def add(side: int, channels: int, *reads: int) -> int:
        items.append(side * side * channels)
        position = len(items) - 1
        last.update(dict.fromkeys(reads or [position - 1], position))
        return position

    side, channels, x = 112, 32, add(112, 32)
    stages = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)
    for factor, wider, repeats, stride in (*stages, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for repeat in range(repeats):
            if factor > 1:
                add(side, channels * factor)
            side //= 1 if repeat else stride
            add(side, channels * factor)
            y = add(side, wider)
            x = add(side, wider, y, x) if repeat else y
            channels = wider
    for edge, width in ((side, 1280), (1, 1280), (1, 1000), (1, 1000)):
        add(edge, width)
    return [Record(4 * n, i, last.get(i, i)) for i, n in enumerate(items)]


def vgg16() -> list[Record]:
    items, side = list[int](), 224
    for channels, depth in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        items += [side**2 * channels] * depth
        side //= 2
        items.append(side**2 * channels)
    items += [4096, 4096, 1000]
    return [Record(4 * n, i, min(i + 1, len(items) - 1)) for i, n in enumerate(items)]


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
        (mobilenet_v2, "26.313 8.039 7.513 6.891 6.699 6.604 5.742 5.742"),
        (vgg16, "57.553 24.500 27.562 27.562 24.500 24.500 24.500 24.500"),
    ],
)
def test_known_totals(network: Callable[[], list[Record]], expected: str) -> None:
    """float32, batch 1, activations fused; input and softmax left out."""
    assert mib(network()) == tuple(expected.split())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mobilenet_v1", "19.248 4.594 5.359 4.594 4.594 4.594 4.594 4.594"),
        ("mobilenet_v2", "25.489 8.039 7.273 6.699 6.891 6.604 5.742 5.742"),
        ("vgg16", "57.744 24.500 27.562 27.562 24.500 24.500 24.500 24.500"),
    ],
)
def test_totals_of_networks(name: str, expected: str) -> None:
    """MobileNet v1 has the totals of the papers' table. In the others, additions are fused here,
    Flatten makes a tensor, and a pool of 1x1 another."""
    graph = build_graph(build(name), name)
    assert mib(list(records_of(graph).values())) == tuple(expected.split())


@pytest.mark.parametrize("name", MODELS)
def test_networks_of_the_zoo_stay_near_the_bounds(name: str) -> None:
    tensors = list(records_of(build_graph(build(name), name)).values())
    found = assign_all(tensors)
    assert found["offsets_by_size"].total_bytes == offsets_bound(tensors)
    assert found["by_size_improved"].total_bytes <= 1.2 * shared_objects_bound(tensors)
