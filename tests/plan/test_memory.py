"""Buffers are shared only by tensors that are never alive together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.plan.memory import Lifetime, share
from coexec.plan.schedule import Segment, ended_before


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Lifetime], list[Segment]]:
    count = draw(st.integers(1, 12))
    segments = []
    for i in range(count):
        after = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        segments.append(Segment(i, "d", "null", (), (), (), tuple(sorted(after))))
    lives = []
    for writer in range(count):
        later = [s.index for s in segments if writer in s.after]
        readers = draw(st.sets(st.sampled_from(later))) if later else set()
        more = draw(st.sets(st.integers(0, count - 1), max_size=1))  # who writes another part
        writers = tuple(sorted({writer, *more}))
        lives.append(Lifetime(draw(st.integers(0, 100)), writers, tuple(sorted(readers))))
    return lives, segments


def touched(tensor: Lifetime) -> tuple[int, ...]:
    return (*tensor.writers, *tensor.readers)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(case=cases())
def test_sharing_is_safe_under_the_partial_order(
    case: tuple[list[Lifetime], list[Segment]],
) -> None:
    lives, segments = case
    ended = ended_before(segments)
    buffer_of, sizes = share(lives, ended)
    for i, a in enumerate(lives):
        assert sizes[buffer_of[i]] >= a.size_bytes
        for j, b in enumerate(lives[:i]):
            if buffer_of[i] == buffer_of[j]:
                a_first = all(ended[w] >> s & 1 for w in b.writers for s in touched(a))
                b_first = all(ended[w] >> s & 1 for w in a.writers for s in touched(b))
                assert a_first or b_first
    assert sum(sizes) <= sum(t.size_bytes for t in lives)


def test_a_chain_needs_two_buffers() -> None:
    segments = [Segment(i, "d", "null", (), (), (), (i - 1,) if i else ()) for i in range(6)]
    lives = [Lifetime(10, (i,), (i + 1,)) for i in range(5)]
    assert sum(share(lives, ended_before(segments))[1]) == 20
