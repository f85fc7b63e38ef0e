"""Parts are cut and joined to what is wanted, or what they lack is told."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.graph.region import Region
from coexec.graph.stitch import Joined, Taken, assemble, in_sequence, missing

SHAPE = (6, 5)
VALUES = np.arange(30).reshape(SHAPE)

quick = settings(deadline=None, derandomize=True, database=None, max_examples=300)


@st.composite
def boxes(draw: st.DrawFn) -> Region:
    start = tuple(draw(st.integers(0, d - 1)) for d in SHAPE)
    stop = tuple(draw(st.integers(a + 1, d)) for a, d in zip(start, SHAPE, strict=True))
    return Region(start, stop)


def rows(start: int, stop: int) -> Region:
    return Region((start, 0), (stop, 5))


def put_together(plan: Taken | Joined) -> np.ndarray:
    if isinstance(plan, Joined):
        return np.concatenate([put_together(member) for member in plan.members], plan.axis)
    assert plan.source.contains(plan.region)
    return VALUES[plan.source.slices][plan.region.relative_to(plan.source).slices]


def test_a_part_that_holds_all_is_taken_the_smallest_first() -> None:
    assert assemble(rows(1, 3), [rows(0, 6), rows(1, 4)]) == Taken(rows(1, 4), rows(1, 3))


def test_neighbours_are_joined_in_order() -> None:
    thirds = [rows(4, 6), rows(0, 2), rows(2, 4)]
    members = tuple(Taken(r, r) for r in (rows(0, 2), rows(2, 4), rows(4, 6)))
    assert assemble(rows(0, 6), thirds) == Joined(rows(0, 6), 0, members)


def test_each_part_of_an_overlapping_row_is_cut_once() -> None:
    plan = assemble(rows(0, 6), [rows(0, 3), rows(2, 5), rows(4, 6)])
    assert isinstance(plan, Joined) and len(plan.members) == 3


def test_a_grid_is_joined_without_cutting_its_tiles() -> None:
    tiles = [Region((a, b), (a + 3, min(b + 3, 5))) for a in (0, 3) for b in (0, 3)]
    plan = assemble(Region.whole(SHAPE), tiles)
    assert isinstance(plan, Joined)
    leaves = [leaf for row in plan.members if isinstance(row, Joined) for leaf in row.members]
    assert sorted(map(str, leaves)) == sorted(str(Taken(tile, tile)) for tile in tiles)


def test_a_gap_is_found_and_nothing_is_assembled() -> None:
    parts = [rows(0, 2), rows(3, 5)]
    assert missing(rows(0, 6), parts) == (rows(2, 3), rows(5, 6))
    assert assemble(rows(0, 6), parts) is None
    assert assemble(rows(0, 6), []) is None


def test_a_missing_corner_comes_in_boxes() -> None:
    rest = missing(Region.whole(SHAPE), [Region((0, 0), (4, 4))])
    assert rest == (rows(4, 6), Region((0, 4), (4, 5)))


@quick
@given(boxes(), st.lists(boxes(), max_size=6))
def test_what_is_there_and_what_is_missing_make_the_whole(
    region: Region, parts: list[Region]
) -> None:
    rest = missing(region, parts)
    marks = np.zeros(SHAPE, int)
    for box in rest:
        marks[box.slices] += 1
    wanted = np.zeros(SHAPE, int)
    wanted[region.slices] = 1
    for part in parts:
        wanted[part.slices] = 0
    assert np.array_equal(marks, wanted)  # disjoint, and nothing else

    assert (assemble(region, parts) is None) == bool(rest)
    plan = assemble(region, [*parts, *rest])
    assert plan is not None
    assert np.array_equal(put_together(plan), VALUES[region.slices])


@settings(deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 3))
def test_in_sequence_is_what_numpy_lays_behind_each_other(
    shape: list[int], axis: int, at: int
) -> None:
    axis %= len(shape)
    whole = Region.whole(tuple(shape))
    parts = [whole.with_axis(axis, 0, min(at, shape[axis]))]
    if at < shape[axis]:
        parts.append(whole.with_axis(axis, at, shape[axis]))
    memory = np.arange(whole.size).reshape(shape)
    flat = np.concatenate([memory[part.slices].ravel() for part in parts])
    assert in_sequence(reversed(parts), whole) == bool((flat == memory.ravel()).all())
    assert not in_sequence([], whole) and (len(parts) == 1 or not in_sequence(parts[:1], whole))


def test_a_scalar_is_in_sequence_by_itself_only() -> None:
    scalar = Region.whole(())
    assert in_sequence([scalar], scalar)
    assert not in_sequence([], scalar) and not in_sequence([scalar, scalar], scalar)
