"""`coexec inspect --passes` and `--pass`: what the simplification did to a model."""

import json
from pathlib import Path

import onnx
import pytest

from coexec.cli import main
from coexec.cli.exits import DONE, WRONG_USAGE
from coexec.model.passes import PASSES
from tests.model.test_passes import padded


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    onnx.save(padded(), str(tmp_path / "model.onnx"))
    return ["inspect", str(tmp_path / "model.onnx"), "--cache", str(tmp_path / "cache")]


def test_all_passes_are_listed_in_order(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--passes", "--without", "merge-nodes"]) == DONE
    rows = [line.split() for line in capfd.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == list(PASSES)
    by_name = {row[0]: " ".join(row[1:]) for row in rows}
    assert by_name["pad-into-conv"].startswith("compared 3 -> 2 1 Makes zeros around")
    assert by_name["merge-nodes"].startswith("exact left out: switched off Merges nodes")


def test_a_pass_is_printed_as_the_lines_that_it_changed(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--pass", "remove-identities"]) == DONE
    changed = [line for line in capfd.readouterr().out.splitlines() if line[0] in "-+"]
    assert [line.split()[1] for line in changed] == ["before", "after", "m:", "y:", "y:"]
    assert main([*words, "--pass", "merge-constants", "--json"]) == DONE
    (found,) = json.loads(capfd.readouterr().out)["passes"].values()
    assert found["before"] == found["after"] and found["exact"] and found["made"] == 0


def test_a_pass_that_is_none_is_an_error_with_the_nearest(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    for option in ("--pass", "--without"):
        assert main([*words, option, "merge-node", "--passes"]) == WRONG_USAGE
        (line,) = capfd.readouterr().err.splitlines()
        assert "no pass 'merge-node' (did you mean 'merge-nodes'?)" in line
