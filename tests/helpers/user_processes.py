"""Processes that a test has started with a state folder of their own; skips without psutil."""

import pytest

__all__ = ["processes_of"]

psutil = pytest.importorskip("psutil", reason="pip install psutil")


def processes_of(state: str) -> list[str]:
    """Names of the processes whose XDG_STATE_HOME is ``state``."""
    names = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("XDG_STATE_HOME") == state:
                names.append(process.name())
        except psutil.Error:
            continue
    return names
