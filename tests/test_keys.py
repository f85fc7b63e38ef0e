"""Digests: equal for equal facts, and for no others that are near."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from coexec.keys import digest

FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


@given(st.lists(FACTS, max_size=4), st.lists(FACTS, max_size=4))
def test_digests_are_equal_for_equal_facts_only(one: list[object], other: list[object]) -> None:
    assert (digest(*one) == digest(*other)) == (repr(one) == repr(other))


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_two_facts_read_as_one(one: str, other: str) -> None:
    assert digest(one, other) != digest(one + other)
    assert digest(one, other) != digest(repr(one) + repr(other))
    assert digest(one) != digest(repr(one).encode())


def test_a_digest_is_the_same_in_another_process() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from coexec.keys import digest; print(digest('x', 1, b'y'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.strip() == digest("x", 1, b"y")
    assert digest("x", 1, b"y", digits=8) == digest("x", 1, b"y")[:8]
