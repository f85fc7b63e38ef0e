"""Settings are declared once: sessions, checks and the command line agree with the declaration."""

import inspect
from dataclasses import fields

import pytest

import coexec
from coexec.errors import UsageError
from coexec.settings import KEYWORDS, Settings

BY_NAME = {field.name: field for field in fields(Settings)}


def test_the_keywords_of_a_session_are_settings() -> None:
    parameters = inspect.signature(coexec.InferenceSession.__init__).parameters
    keywords = {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert set(keywords) == set(KEYWORDS)
    for name, default in keywords.items():
        assert default in (None, BY_NAME[name].default), name


def test_a_setting_without_a_value_is_its_default() -> None:
    assert Settings(**dict.fromkeys(("shapes", "values", "pins", "planner_options"))) == Settings()


@pytest.mark.parametrize("name", sorted(set(KEYWORDS) - {"plan"}))  # read, not checked
def test_each_keyword_is_checked(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Settings(**{name: object()})


def test_options_have_flags_of_their_own() -> None:
    flags = [o.flag for f in BY_NAME.values() if (o := f.metadata.get("option")) is not None]
    assert flags and len(flags) == len(set(flags))
