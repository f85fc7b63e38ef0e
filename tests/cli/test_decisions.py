"""Candidates of a choice as text."""

import pytest

from coexec.cli.decisions import candidate_lines
from coexec.selection.decision import Candidate, Decision


def test_a_plan_that_is_only_the_first_is_not_called_taken(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = (
        Candidate(("cpu:0",), "heft", status="taken", reason="the taken plan is clearly faster"),
        Candidate(("cpu:1",), "heft", reason="the taken plan is still faster"),
    )
    text = "\n".join(candidate_lines(Decision(rows), "first"))
    assert text.count("the first plan is") == 2 and "taken plan" not in text
