"""`docs/what_runs_where.md` has the rows that the engines give."""

import pytest

from coexec.cache import Cache
from tests.helpers.runs_page import ENGINES, PAGE, engines_here, page_rows, rows

OPERATORS = ("Conv", "Relu", "Compress", "BitShift", "BatchNormalization", "Adam")
"""Operators that all engines run, only some, in part, and none but ONNX Runtime."""


def compared(cache: Cache, only: tuple[str, ...] | None) -> None:
    engines = engines_here()
    assert "onnxruntime" in engines
    cells = {
        name: dict(zip(ENGINES, row, strict=True))
        for name, *row in page_rows(PAGE.read_text(encoding="utf-8"))
        if name not in ENGINES
    }
    found = rows(engines, cache, only)
    assert found.keys() == (cells.keys() if only is None else set(only))
    differences = {
        (operator, engine): (str(row), cells[operator][engine])
        for operator, by_engine in found.items()
        for engine, row in by_engine.items()
        if str(row) != cells[operator][engine]
    }
    assert not differences, "run: python -m tests.helpers.runs_page"


@pytest.mark.long
def test_sample_of_the_page(cache: Cache) -> None:
    compared(cache, OPERATORS)


@pytest.mark.conformance
def test_the_whole_page(cache: Cache) -> None:
    compared(cache, None)
