"""Fixtures of the command line's tests."""

import pytest

from coexec.cli import progress
from coexec.report import rivals


@pytest.fixture(autouse=True)
def no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress has no lines, however busy the machine is."""
    monkeypatch.setattr(progress, "LOOK_S", 1e6)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`coexec bench` leaves peak memory out, which takes a new process for each row."""
    for name in ("of_plan", "of_onnx_runtime"):
        monkeypatch.setattr(rivals, name, lambda *_: None)
