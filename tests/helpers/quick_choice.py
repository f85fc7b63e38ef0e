"""planner="auto" in little time: for tests of what is around a choice, not of the choice itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coexec.choosing import auto, configurations, ranking

__all__ = ["PROGRAM", "quick_choice"]

PROGRAM = """
from coexec.choosing import auto, configurations, ranking
ranking._ROUNDS = 1, 1
auto._OPTIONS["planners"] = "heft"
configurations._further_engines = list
"""
"""The same for the beginning of a program that runs in a process of its own."""


@contextmanager
def quick_choice() -> Iterator[None]:
    """Every candidate runs in one round, one planner is asked, and CPU cores have one engine.

    Else kernels of further engines are compiled, and a race takes seconds to be certain.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_ROUNDS", (1, 1))
        patch.setitem(auto._OPTIONS, "planners", "heft")
        patch.setattr(configurations, "_further_engines", list)
        yield
