"""Every strategy gives safe assignments within its bounds, and keeps what it promises."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.plan.memory import (
    BOUNDS,
    Assignment,
    Record,
    alive_at,
    offsets_bound,
    records_of,
    shared_objects_bound,
    verify,
)
from coexec.plan.memory import STRATEGIES as OF_A_RUN
from coexec.research.memory_strategies import FAMILY_OF, STRATEGIES, assign_all
from tests.helpers.graphs import make_graph

examples = settings(max_examples=100, deadline=None, derandomize=True)
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def records(max_size: int = 14) -> st.SearchStrategy[list[Record]]:
    """Tensors of few sizes and positions, so that ties and equal intervals are likely."""
    sizes = st.one_of(st.sampled_from((0, 8, 16, 32)), st.integers(0, 100))
    one = st.builds(
        lambda size, first, length: Record(size, first, first + length),
        sizes,
        st.integers(0, 10),
        st.integers(0, 4),
    )
    return st.lists(one, max_size=max_size)


def of_objects(tensors: Sequence[Record]) -> dict[str, Assignment]:
    return {n: a for n, a in assign_all(tensors).items() if FAMILY_OF[n] == "objects"}


def rows(*triples: tuple[int, int, int]) -> list[Record]:
    return [Record(*triple) for triple in triples]


# The contract


def test_the_strategies_of_a_run_are_among_them() -> None:
    assert list(STRATEGIES) == sorted(STRATEGIES)
    assert {STRATEGIES[s.__name__]: FAMILY_OF[s.__name__] for s in OF_A_RUN.values()} == {
        strategy: family for family, strategy in OF_A_RUN.items()
    }
    assert list(OF_A_RUN) == list(BOUNDS)


@every_strategy
@given(tensors=records())
@examples
def test_assignments_are_safe_and_within_bounds(name: str, tensors: list[Record]) -> None:
    found = STRATEGIES[name](tensors)
    verify(tensors, found)
    assert found == STRATEGIES[name](tuple(tensors))
    assert found.total_bytes >= BOUNDS[FAMILY_OF[name]](tensors) >= offsets_bound(tensors)
    assert found.total_bytes <= sum(t.size_bytes for t in tensors)
    if FAMILY_OF[name] == "objects":
        assert set(found.offsets) <= {0}
        for i, a in enumerate(tensors):
            for j, b in enumerate(tensors[:i]):
                together = found.object_of[i] == found.object_of[j]
                assert not (together and a.first <= b.last and b.first <= a.last)
        used = {o: [] for o in range(len(found.sizes))}
        for target, tensor in zip(found.object_of, tensors, strict=True):
            used[target].append(tensor.size_bytes)
        assert [max(sizes) for sizes in used.values()] == list(found.sizes)
    else:
        assert len(found.sizes) == 1


@every_strategy
@given(tensors=records())
@examples
def test_sizes_rounded_up_give_aligned_offsets(name: str, tensors: list[Record]) -> None:
    rounded = [Record(-t.size_bytes // 128 * -128, t.first, t.last) for t in tensors]
    assert all(offset % 128 == 0 for offset in STRATEGIES[name](rounded).offsets)


@given(records())
@examples
def test_images_of_one_extent_are_as_few_as_possible(tensors: list[Record]) -> None:
    alike = [Record(8, t.first, t.last) for t in tensors]
    assert OF_A_RUN["objects"](alike).total_bytes == shared_objects_bound(alike)


def test_nothing_to_place() -> None:
    assert {a.total_bytes for a in assign_all([]).values()} == {0}
    assert shared_objects_bound([]) == offsets_bound([]) == 0


# Records and what verify refuses


def test_records_that_are_none() -> None:
    for triple in ((-1, 0, 0), (1, 2, 1)):
        with pytest.raises(ValueError, match="negative size or ends before it begins"):
            Record(*triple)


def test_verify_names_the_two_that_overlap() -> None:
    tensors = rows((8, 0, 1), (4, 1, 2), (8, 3, 4), (16, 4, 5))
    verify(tensors, Assignment.shared([0, 1, 1, 0], [16, 8]))
    with pytest.raises(ValueError, match=r"tensors 2 \(8 B, operations 3 to 4; .*\) and 3 \(16 B"):
        verify(tensors, Assignment.shared([0, 1, 0, 0], [16, 4]))
    verify(tensors, Assignment.arena([0, 8, 16, 0], 24))
    with pytest.raises(ValueError, match=r"0 .*bytes 0 to 8\) and 1 .*bytes 7 to 11\)"):
        verify(tensors, Assignment.arena([0, 7, 16, 0], 24))


def test_verify_refuses_places_that_are_none() -> None:
    tensors = rows((8, 0, 1), (4, 2, 3))
    for wrong, message in [
        (Assignment.shared([0], [8]), "2 tensors, but 1"),
        (Assignment.shared([0, 1], [8]), "object 1, but there are 1"),
        (Assignment.shared([0, 0], [7]), r"tensor 0 \(8 B.* ends at 7"),
        (Assignment.arena([0, -4], 8), "tensor 1 .* byte -4"),
        (Assignment.arena([0, 5], 8), "tensor 1 .* byte 5"),
    ]:
        with pytest.raises(ValueError, match=message):
            verify(tensors, wrong)


@given(records())
@examples
def test_alive_at_every_operation_that_makes_a_tensor(tensors: list[Record]) -> None:
    expected = {
        op: [i for i, t in enumerate(tensors) if t.first <= op <= t.last]
        for op in sorted({t.first for t in tensors})
    }
    assert alive_at(tensors) == expected


def test_records_of_a_graph() -> None:
    reads = {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["c", "b>d"], "e": ["a"]}
    graph = make_graph(reads, {"a": 3, "b": 5, "c": 7})
    assert graph.outputs == ("d", "e")
    assert records_of(graph) == {
        "a": Record(12, 0, 4),
        "b": Record(20, 1, 2),
        "b>d": Record(4, 1, 3),
        "c": Record(28, 2, 3),
        "d": Record(4, 3, 4),  # an output, fetched when all is done
        "e": Record(4, 4, 4),
    }


# What single strategies promise


@given(records())
@examples
def test_greedy_in_order_makes_as_few_objects_as_possible(tensors: list[Record]) -> None:
    most = max(map(len, alive_at(tensors).values()), default=0)
    assert len(STRATEGIES["greedy_in_order"](tensors).sizes) == most


def growth(tensors: Sequence[Record], found: Assignment) -> int:
    """What the flow pays for an assignment."""
    size_of: dict[int, int] = {}
    paid = 0
    for i in sorted(range(len(tensors)), key=lambda i: tensors[i].first):
        target, size = found.object_of[i], tensors[i].size_bytes
        paid += max(0, size - size_of.get(target, 0))
        size_of[target] = size
    return paid


def cheapest_growth(tensors: Sequence[Record], given: frozenset[int] = frozenset()) -> int:
    """The same of the best choice of givers, all being tried."""
    if not tensors:
        return 0
    *others, taker = tensors  # givers of the last: any one that ended before and has not given
    costs = [taker.size_bytes + cheapest_growth(others, given)] if others else [taker.size_bytes]
    for x, giver in enumerate(others):
        if giver.last < taker.first and x not in given:
            grown = max(0, taker.size_bytes - giver.size_bytes)
            costs.append(grown + cheapest_growth(others, given | {x}))
    return min(costs)


@given(records(max_size=7))
@examples
def test_min_cost_flow_grows_least(tensors: list[Record]) -> None:
    tensors.sort(key=lambda t: t.first)
    found = STRATEGIES["min_cost_flow"](tensors)
    assert growth(tensors, found) == cheapest_growth(tensors) >= found.total_bytes


@given(records())
@examples
def test_min_cost_flow_grows_no_more_than_any_other(tensors: list[Record]) -> None:
    found = of_objects(tensors)
    assert growth(tensors, found["min_cost_flow"]) == min(
        growth(tensors, a) for a in found.values()
    )


def least_shared_bytes(tensors: Sequence[Record]) -> int:
    """The optimum of shared objects, all partitions being tried; ``tensors`` the largest first."""

    def place(i: int, objects: tuple[tuple[Record, ...], ...]) -> int:
        if i == len(tensors):
            return sum(inside[0].size_bytes for inside in objects)
        totals = [place(i + 1, (*objects, (tensors[i],)))]
        for o, inside in enumerate(objects):
            if not any(map(tensors[i].alive_with, inside)):
                joined = (*objects[:o], (*inside, tensors[i]), *objects[o + 1 :])
                totals.append(place(i + 1, joined))
        return min(totals)

    return place(0, ())


@given(records(max_size=6))
@examples
def test_the_optimum_lies_between_bound_and_smallest(tensors: list[Record]) -> None:
    best = least_shared_bytes(sorted(tensors, key=lambda t: -t.size_bytes))
    assert shared_objects_bound(tensors) <= best
    assert best <= min(a.total_bytes for a in of_objects(tensors).values())


def test_min_cost_flow_takes_large_networks() -> None:
    """A search that relaxes all edges for each tensor would take minutes here."""
    tensors = [Record(i * 7919 % 1000, i, i + 1 + i % 7 * (i % 3)) for i in range(1500)]
    found = STRATEGIES["min_cost_flow"](tensors)
    assert found.total_bytes <= growth(tensors, found) < sum(t.size_bytes for t in tensors) / 10
