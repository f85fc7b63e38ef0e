"""How many examples property tests draw."""

__all__ = ["FACTOR", "scaled"]

FACTOR = [1]
"""Set by ``pytest --examples``, before tests are collected."""


def scaled(count: int) -> int:
    """``count``, for tests that every change has to pass; more where there is time for them."""
    return count * FACTOR[0]
