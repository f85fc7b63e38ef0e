"""Boxes behave like the sets of elements that they stand for."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.graph.region import Region

quick = settings(deadline=None, derandomize=True, database=None)

Elements = set[tuple[int, ...]]


@st.composite
def boxes(draw: st.DrawFn, rank: int, *, empty: bool = True) -> Region:
    start = tuple(draw(st.integers(0, 5)) for _ in range(rank))
    return Region(start, tuple(a + draw(st.integers(0 if empty else 1, 4)) for a in start))


def elements(region: Region) -> Elements:
    axes = (range(a, b) for a, b in zip(region.start, region.stop, strict=True))
    return set(product(*axes))


def pairs() -> st.SearchStrategy[tuple[Region, Region]]:
    return st.integers(0, 3).flatmap(lambda rank: st.tuples(boxes(rank), boxes(rank)))


def test_the_whole_tensor() -> None:
    whole = Region.whole((2, 3))
    assert (whole.start, whole.stop, whole.shape, whole.size) == ((0, 0), (2, 3), (2, 3), 6)
    assert whole.covers((2, 3)) and not whole.covers((2, 4)) and not whole.covers((1, 3))
    assert not Region((1, 0), (2, 3)).covers((2, 3))
    assert str(Region((0, 1), (2, 3))) == "[0:2, 1:3]"


def test_a_scalar_has_one_region_of_one_element() -> None:
    scalar = Region.whole(())
    assert (scalar.shape, scalar.size, scalar.slices) == ((), 1, ())
    assert scalar.covers(()) and scalar.contains(scalar) and scalar.hull(scalar) == scalar
    assert np.array(5)[scalar.slices] == 5


def test_a_box_that_ends_before_it_starts_is_empty() -> None:
    region = Region((3, 0), (1, 4))
    assert (region.shape, region.size) == ((0, 4), 0)


def test_ranks_must_agree() -> None:
    with pytest.raises(ValueError):
        Region((0,), (1,)).overlap(Region((0, 0), (1, 1)))


def test_one_axis_is_replaced() -> None:
    assert Region.whole((4, 5)).with_axis(1, 2, 3) == Region((0, 2), (4, 3))


@quick
@given(pairs())
def test_overlap_is_the_intersection(pair: tuple[Region, Region]) -> None:
    a, b = pair
    assert elements(a.overlap(b)) == elements(a) & elements(b) == elements(b.overlap(a))
    assert a.overlap(b).size == len(elements(a) & elements(b))


@quick
@given(pairs())
def test_containing_is_being_a_superset(pair: tuple[Region, Region]) -> None:
    a, b = pair
    assert a.contains(b) == (elements(a) >= elements(b))


@quick
@given(pairs())
def test_the_hull_is_the_smallest_box_around_both(pair: tuple[Region, Region]) -> None:
    a, b = pair
    hull, inside = a.hull(b), elements(a) | elements(b)
    assert elements(hull) >= inside
    for axis in range(len(a.start)):
        if inside:
            at = {element[axis] for element in inside}
            assert (hull.start[axis], hull.stop[axis]) == (min(at), max(at) + 1)


@quick
@given(st.integers(1, 3).flatmap(lambda rank: st.tuples(boxes(rank), boxes(rank, empty=False))))
def test_relative_coordinates_index_the_outer_part(pair: tuple[Region, Region]) -> None:
    inner, outer = pair[1], pair[0].hull(pair[1])
    values = np.arange(10 ** len(inner.start)).reshape((10,) * len(inner.start))
    part = values[outer.slices]
    assert np.array_equal(part[inner.relative_to(outer).slices], values[inner.slices])
    assert values[inner.slices].shape == inner.shape
