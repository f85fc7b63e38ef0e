"""The number of examples that property tests draw."""

FACTOR = [1]
"""Factor for all numbers of examples; ``pytest --examples`` sets it before tests are collected."""


def scaled(count: int) -> int:
    """``count`` in the tests that every change has to pass; more in longer test runs."""
    return count * FACTOR[0]
