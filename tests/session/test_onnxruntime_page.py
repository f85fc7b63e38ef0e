"""`docs/onnxruntime.md` is what ONNX Runtime's public names and ours make of it."""

import onnxruntime
import pytest

import coexec
from tests.helpers.onnxruntime_page import PAGE, TABLES, page, public


@pytest.mark.parametrize("kind", TABLES)
def test_every_public_name_has_a_row(kind: str) -> None:
    assert sorted(TABLES[kind]) == public(getattr(onnxruntime, kind))


@pytest.mark.parametrize("kind", ["InferenceSession", "SessionOptions", "IOBinding"])
def test_every_public_name_is_there(kind: str) -> None:
    assert set(public(getattr(onnxruntime, kind))) <= set(public(getattr(coexec, kind)))


def test_every_name_of_the_module_is_there() -> None:
    for name in public(onnxruntime):
        theirs = getattr(onnxruntime, name)
        assert getattr(coexec, name) is theirs or name in coexec.__all__


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m tests.helpers.onnxruntime_page"
    )
