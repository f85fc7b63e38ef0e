"""Algorithm 1 against all chains there are, on random graphs and random costs."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.model.load import load
from coexec.pipeline.planners.methods.bodies import Bodies
from coexec.pipeline.planners.methods.pieces import (
    Dag,
    TooWide,
    chain_of_pieces,
    least_chain,
    wide_chain,
)
from coexec.pipeline.planners.methods.pipeline import fine_pieces
from coexec.pipeline.planners.methods.rows import RowGraph, bits_of
from coexec.research.zoo import build

Cost = Callable[[int], float]


@st.composite
def dags(draw: Callable, most: int = 12) -> Dag:
    """Every task reads from up to two earlier ones, all from near ones; in graphs of up to seven
    tasks some from none."""
    count = draw(st.integers(1, most))
    least = draw(st.integers(0, 1)) if count <= 7 else 1
    before = [0]
    for task in range(1, count):
        near = st.integers(max(0, task - 4), task - 1)
        reads = draw(st.sets(near, min_size=least, max_size=2))
        before.append(sum(1 << maker for maker in reads))
    return Dag(tuple(before))


def random_cost(seed: int) -> Cost:
    """Small whole numbers, so that there are ties; larger pieces cost more on the whole."""
    known: dict[int, float] = {}
    rng = random.Random(seed)

    def cost(piece: int) -> float:
        if piece not in known:
            known[piece] = float(rng.randrange(4) * piece.bit_count())
        return known[piece]

    return cost


def all_values(dag: Dag, cost: Cost, diameter: int) -> tuple[float, float, int]:
    """The least (largest cost), then sum of costs and most pieces, by trying all chains.

    Written from the paper's words: ending pieces, and what feeds the piece cut last is in the next.
    """
    known: dict[tuple[int, int], set[tuple[float, float, int]]] = {}

    def cut(left: int, must: int) -> set[tuple[float, float, int]]:
        """All values of chains of what is left, the last piece of which holds ``must``."""
        if not left:
            return {(0.0, 0.0, 0)}
        if (left, must) not in known:
            found = known[left, must] = set()
            least = _longest(dag, _ending(dag, left, must))
            for piece in _parts(left):
                if must & ~piece or _ending(dag, left, piece) != piece:
                    continue
                if _longest(dag, piece) > max(diameter, least):
                    continue
                feeds = 0
                for task in bits_of(piece):
                    feeds |= dag.before[task]
                price = cost(piece)
                for worst, total, pieces in cut(left & ~piece, feeds & left & ~piece):
                    found.add((max(worst, price), total + price, pieces - 1))
        return known[left, must]

    values = cut(dag.all, 0)
    worst = min(value[0] for value in values)
    return min(value for value in values if value[0] == worst)


def _parts(whole: int) -> list[int]:
    """All sets of some of these tasks."""
    found, part = [], whole
    while part:
        found.append(part)
        part = (part - 1) & whole
    return found


def _ending(dag: Dag, left: int, piece: int) -> int:
    """``piece`` with all that reads from it, of what is left."""
    while True:
        more = piece
        for task in bits_of(piece):
            more |= dag.following[task] & left
        if more == piece:
            return piece
        piece = more


def _longest(dag: Dag, piece: int) -> int:
    return max(dag.depths(piece).values(), default=0)


def value(chain: list[int], cost: Cost) -> tuple[float, float, int]:
    costs = [cost(piece) for piece in chain]
    return max(costs), sum(costs), -len(costs)


def check_chain(dag: Dag, chain: list[int] | tuple[int, ...]) -> None:
    """Every task once, data to the same or the next piece."""
    position = {task: k for k, piece in enumerate(chain) for task in bits_of(piece)}
    assert sorted(position) == list(range(len(dag.before)))
    assert sum(piece.bit_count() for piece in chain) == len(dag.before)
    for task, before in enumerate(dag.before):
        for maker in bits_of(before):
            assert position[task] - position[maker] in (0, 1)


@given(dags(), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_best_of_all_chains(dag: Dag, seed: int) -> None:
    cost = random_cost(seed)
    chain = chain_of_pieces(dag, cost, diameter=12)
    check_chain(dag, chain)
    assert value(chain, cost) == all_values(dag, cost, 12)


@given(dags(), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_limits_that_rise_find_the_same(dag: Dag, seed: int) -> None:
    """With costs that only grow when a piece does."""
    chosen = random.Random(seed)
    weights = [chosen.randrange(3) for _ in dag.before]

    def cost(piece: int) -> float:
        depths = dag.depths(piece)
        return float(sum(weights[task] * depth for task, depth in depths.items()))

    known = max(map(cost, wide_chain(dag, cost, 12)))
    found = least_chain(dag, cost, 12, math.inf, known)
    assert value(found, cost) == value(chain_of_pieces(dag, cost, 12), cost)


@given(dags(9), st.integers(0, 10**6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_pieces_are_short_where_they_can_be(dag: Dag, seed: int, diameter: int) -> None:
    """Unless what feeds the next piece makes it longer. Fronts and ending pieces differ in which
    end they force, so that only the bound is compared."""
    chain = chain_of_pieces(dag, random_cost(seed), diameter)
    check_chain(dag, chain)
    front = 0
    for piece in chain:
        forced = dag.least_next(front) & ~front
        assert _longest(dag, piece) <= max(diameter, _longest(dag, forced))
        front |= piece


@given(dags(), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_wide_chains_are_chains(dag: Dag, seed: int) -> None:
    cost = random_cost(seed)
    chain = wide_chain(dag, cost, diameter=12)
    check_chain(dag, chain)
    assert max(map(cost, chain)) >= max(map(cost, chain_of_pieces(dag, cost, 12)))


def test_a_graph_is_too_wide_beyond_a_number_of_arcs() -> None:
    side_by_side = Dag((0,) * 12)
    with pytest.raises(TooWide):
        chain_of_pieces(side_by_side, lambda piece: 0.0, max_arcs=1000)


@pytest.mark.parametrize("name", ["squeezenet", "resnet34", "mobilenet_v3"])
def test_the_wide_algorithm_beside_the_exact_one(name: str) -> None:
    """On networks that both can do, the largest redundancy is the same."""
    bodies = Bodies(RowGraph(load(build(name)).graph))
    dag = Dag(bodies.rows.before)

    def cost(piece: int) -> float:
        return float(bodies.of(piece).redundant_macs())

    exact = fine_pieces(bodies)
    assert exact.exact
    check_chain(dag, exact.chain)
    wide = wide_chain(dag, cost)
    check_chain(dag, wide)
    assert max(map(cost, wide)) == max(map(cost, exact.chain))
