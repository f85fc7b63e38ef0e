"""`docs/cli.md`, and what it says of options and JSON documents."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import main
from coexec.cli.verbs import fields_of
from coexec.engines.detect import usable_cores
from tests.helpers.cli_page import PAGE, commands, page
from tests.helpers.small_models import branches

CPU = f"cpu:{usable_cores()[0]}"
COMMANDS = {words: command for words, command, _ in commands()}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/helpers/cli_page.py"


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_has_its_help(words: str) -> None:
    options = {option.name: option for option in COMMANDS[words].params}
    assert [name for name, option in options.items() if not option.help] == []
    assert ("json" in options) == bool(fields_of(COMMANDS[words]))


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize(
    "words",
    [
        ["devices"],
        ["doctor"],
        ["inspect", "MODEL"],
        ["inspect", "MODEL", "--memory", "--device", CPU],
        ["profile", "MODEL", "--devices", CPU],
        ["plan", "MODEL", "--devices", CPU, "--planner", "single"],
        ["plan", "MODEL", "--devices", CPU, "--planner", "single", "--programs"],
        ["explain", "MODEL", "--devices", CPU, "--planner", "single"],
        ["simulate", "MODEL", "--devices", CPU, "--planner", "single"],
        ["run", "MODEL", "--devices", CPU, "--planner", "single"],
        ["check", "MODEL", "--devices", CPU, "--planner", "single"],
        ["check", "MODEL", "--devices", CPU, "--tasks"],
        ["bench", "MODEL", "--devices", CPU, "--planner", "single", "--repeats", "1"],
        ["cache"],
        ["cache", "clear", "choices"],
        ["cache", "trim"],
        ["cluster", "plan", "MODEL", "--machines", "2", "--gflops", "8", "--mbit", "50"],
    ],
)
def test_json_has_the_fields_that_are_declared(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(branches(), str(model))
    cache = [] if words[0] in ("devices", "doctor") else ["--cache", str(tmp_path / "cache")]
    found = printed(capfd, *(str(model) if word == "MODEL" else word for word in words), *cache)
    name = " ".join(words[:2]) if words[0] in ("cache", "cluster") else words[0]
    fields = fields_of(COMMANDS[name])
    assert set(found) <= {"schema", *fields}
    always = {field for field, text in fields.items() if not text.startswith(("With --", "Where"))}
    asked = {word[2:] for word in words} & {"memory", "device", "programs"}
    assert (always | asked) - (set(found) | {"difference", "differences"}) == set()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("pl", "plan"),
        ("cluster sta", "start"),
        ("plan --plann", "--planner"),
        ("run --waiting pas", "passive"),
    ],
)
def test_the_shell_completes(
    typed: str, expected: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_COEXEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"coexec {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0 and expected in capfd.readouterr().out.split()
