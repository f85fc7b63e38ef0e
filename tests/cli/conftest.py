"""Fixtures of the command line's tests."""

import pytest

from coexec.cli import bench


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`coexec bench` leaves peak memory out, which takes a new process for each row."""
    for name in ("of_plan", "of_onnx_runtime"):
        monkeypatch.setattr(bench, name, lambda *_: None)
