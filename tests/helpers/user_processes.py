"""Processes that a test has started as a user of their own; skips without psutil."""

import pytest

__all__ = ["processes_of"]

psutil = pytest.importorskip("psutil", reason="pip install psutil")


def processes_of(state: str) -> list[str]:
    """Names of those whose XDG_STATE_HOME is ``state``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("XDG_STATE_HOME") == state:
                found.append(process.name())
        except psutil.Error:
            continue
    return found
