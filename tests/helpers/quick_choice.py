"""A fast planner="auto", for tests of the code around the choice of a plan, not of the choice."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coexec.selection import auto, configurations, ranking

__all__ = ["PROGRAM", "quick_choice"]

PROGRAM = """
from coexec.selection import auto, configurations, ranking
ranking._ROUNDS = 1, 1
auto._OPTIONS["planners"] = "heft"
configurations._further_engines = list
"""
"""The same settings as code, for the beginning of a program that runs in its own process."""


@contextmanager
def quick_choice() -> Iterator[None]:
    """Run each candidate in one round only, use one planner, and use one engine for CPU cores.

    Otherwise kernels of further engines are compiled, and a comparison of candidates takes seconds
    until it is certain.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_ROUNDS", (1, 1))
        patch.setitem(auto._OPTIONS, "planners", "heft")
        patch.setattr(configurations, "_further_engines", list)
        yield
