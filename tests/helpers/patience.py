"""Waiting for another thread or process, which may be late if the machine has other work."""

import time
from collections.abc import Callable

ENOUGH_S = 120.0
"""Longer than every condition takes on a loaded machine: only a fault takes as long."""


def until(condition: Callable[[], object], what: object = "") -> None:
    """Return when ``condition()`` is true. Fails the test with ``what`` if that never happens."""
    end_s = time.monotonic() + ENOUGH_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {ENOUGH_S:g} s: {what or condition}"
        time.sleep(0.005)
