"""A fast planner="auto", for tests of the code around the choice of a plan, not of the choice."""

from collections.abc import Iterator
from contextlib import contextmanager

from coexec.rules import Rules, default_rules

QUICK_RULES = Rules(
    rounds=(1, 1), starts=1, planners="heft", further_engines=False, busy=9.0, stolen=9.0
)
"""Each candidate runs in one round only, there is one planner, and one engine for CPU cores.

Otherwise kernels of further engines are compiled, and a comparison of candidates takes seconds
until it is certain."""
PROGRAM = f"""
from coexec.rules import Rules, default_rules
quick = default_rules({QUICK_RULES!r})
quick.__enter__()
"""
"""The same as code, for the beginning of a program that runs in its own process."""


@contextmanager
def quick_choice() -> Iterator[None]:
    """Context in which sessions and verbs choose by `QUICK_RULES`, also in other processes."""
    with default_rules(QUICK_RULES):
        yield
