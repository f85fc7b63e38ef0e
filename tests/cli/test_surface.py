"""How the command line starts and ends: help, completion, the page of it, and what reaches the
terminal: names as they are, whatever is in them; progress; outputs that are closed."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest
from onnx import helper

import coexec
from coexec.cli import main, progress
from coexec.cli.app import VERBS as PLAIN
from coexec.cli.cluster import VERBS as OF_CLUSTERS
from coexec.cli.console import TextConsole, out, show, visible
from coexec.cli.exits import DONE
from coexec.cli.output import check_files
from coexec.engines.detect import usable_cores
from coexec.errors import StoreError
from coexec.extras import EXTRAS
from coexec.selection.chooser import Chooser
from coexec.settings import Settings
from tests.cli.conftest import CPU, CommandLine
from tests.helpers.cli_page import PAGE, commands, fields_of, page
from tests.helpers.patience import until
from tests.helpers.small_models import branches, from_nodes, tensor_info

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
ODD = "[gpu] [bold]a[/bold] :key: [/]"
COMMAND = [sys.executable, "-m", "coexec"]
COMMANDS = {words: command for words, command, _ in commands()}
HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "ray", "starlette"}
NAMES = [*PLAIN, "cache clear", "cache trim", *(f"cluster {verb}" for verb in OF_CLUSTERS)]
HELP = [["--version"], ["--help"], [], *([*name.split(), "--help"] for name in NAMES)]
SINGLE = f"MODEL --devices {CPU} --planner single"


def test_help_loads_no_engine() -> None:
    """In one process, as modules stay imported: what one verb loads, the list names it for."""
    code = f"""
import sys
from coexec.cli import main
for words in {HELP!r}:
    assert main(words) == 0, words
    print("loaded", sorted({HEAVY!r} & set(sys.modules)), words)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("loaded")]
    assert len(lines) == len(HELP)
    assert [line for line in lines if not line.startswith("loaded []")] == []


@pytest.mark.parametrize("words", [[], ["cluster"]])
def test_a_group_alone_prints_its_help(words: list[str], capfd: Captured) -> None:
    assert main(words) == DONE
    alone = capfd.readouterr()
    assert main([*words, "--help"]) == DONE
    assert alone == capfd.readouterr() and alone.err == ""
    for verb, summary in (OF_CLUSTERS if words else PLAIN).items():
        assert re.search(rf"^  {verb} +{re.escape(summary)}$", alone.out, re.MULTILINE)


@pytest.mark.parametrize("verb", NAMES)
def test_help_is_short_and_long(verb: str, capfd: Captured) -> None:
    printed = []
    for option in ("-h", "--help"):
        assert main([*verb.split(), option]) == 0
        printed.append(capfd.readouterr().out)
    assert printed[0] == printed[1] and f"coexec {verb}" in printed[0]


def test_version_is_that_of_the_package(capfd: Captured) -> None:
    assert coexec.__version__ == version("coexec")
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"coexec {coexec.__version__}\n"
    code = (
        "import sys, coexec; assert 'importlib.metadata' not in sys.modules; "
        "print(coexec.__version__)"
    )
    path = {"PYTHONPATH": str(Path(coexec.__file__).parents[1])}
    words = [sys.executable, "-S", "-c", code]  # -S: nothing is installed there
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | path, check=True)
    assert done.stdout.strip() == coexec.__version__


def test_extras_bring_what_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names: list[str] = []
        for requirement in extras[extra]:
            (name,) = re.findall(r"^coexec\[(\w+)\]|^([\w-]+)", requirement)
            names += EXTRAS[name[0]] if name[0] else [name[1]]
        assert sorted(names) == sorted(packages), extra
    assert set(extras) == {*EXTRAS, "dev", "pocl"}


# --- The page of the command line


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.helpers.cli_page"


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_has_its_help(words: str) -> None:
    options = {option.name: option for option in COMMANDS[words].params}
    assert [name for name, option in options.items() if not option.help] == []
    assert ("json" in options) == bool(fields_of(COMMANDS[words]))


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize(
    "words",
    [
        "devices",
        "doctor",
        "inspect MODEL",
        f"inspect MODEL --memory --device {CPU}",
        f"profile MODEL --devices {CPU}",
        f"plan {SINGLE}",
        f"plan {SINGLE} --programs",
        f"explain {SINGLE}",
        f"simulate {SINGLE}",
        f"run {SINGLE}",
        f"check {SINGLE}",
        f"check MODEL --devices {CPU} --tasks",
        f"bench {SINGLE} --repeats 1",
        "cache",
        "cache clear choices",
        "cache trim",
        "cluster plan MODEL --machines 2 --gflops 8 --mbit 50",
    ],
)
def test_json_has_the_fields_that_are_declared(words: str, shared: CommandLine) -> None:
    first, *_ = name = words.split()
    found = shared.json(*name, cache=first not in ("devices", "doctor"))
    fields = fields_of(COMMANDS[" ".join(name[:2]) if first in ("cache", "cluster") else first])
    assert set(found) <= {"schema", *fields}
    asked = {word[2:] for word in name} & {"memory", "device", "programs"}
    assert all(found[field] is not None for field in asked)
    always = {field for field, text in fields.items() if not text.startswith("With --")}
    assert always - set(found) == set()


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
    typed: str, expected: str, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    monkeypatch.setenv("_COEXEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"coexec {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0 and expected in capfd.readouterr().out.split()


# --- Texts


def test_strings_are_printed_as_they_are(capfd: Captured) -> None:
    out.print(ODD)
    out.print(show([(ODD + "\x1b[31m\x9b",)], (ODD,)))
    printed = capfd.readouterr().out
    assert printed.count(ODD) == 3
    assert "\x1b" not in printed and r"\x1b[31m\x9b" in printed
    assert visible("a\tb\nc\rd") == "a\tb\nc\\x0dd"


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    """They are refused before the work; nothing is left of the attempt."""
    check_files(tmp_path / "new" / "plan.json")
    assert not list(tmp_path.iterdir())
    with pytest.raises(StoreError, match=r"cannot write '/proc/none/plan\.json'"):
        check_files(Path("/proc/none/plan.json"))  # root has the permission, too


def test_no_other_console_is_made() -> None:
    """One that looks for markup would eat the brackets of 'coexec[gpu]'."""
    folder = Path(coexec.__file__).parent / "cli"
    made = {p.name for p in folder.glob("*.py") if "Console(" in p.read_text()}
    assert made == {"console.py"} and isinstance(out, TextConsole)


@pytest.mark.parametrize(
    "words", ["profile", "explain --all", "plan", "inspect", "inspect --tasks"]
)
def test_names_with_markup_and_control_characters(
    words: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # no name is broken over two lines
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=ODD + "\x1b]0;title\x07")]
    model = from_nodes(nodes, [tensor_info("x", [1, 4])], [tensor_info("y", [1, 4])])
    path, (verb, *options) = cli.save(model, "[red]m[bold] :key:.onnx"), words.split()
    on = ("--devices", "null:0,null:1", "--planner", "heft")
    on = on[: {"inspect": 0, "profile": 2}.get(verb, 4)]
    printed = cli(verb, path, *options, *on)
    assert "\x1b" not in printed and "\x07" not in printed
    assert ODD in printed or verb not in ("profile", "explain")


def test_errors_show_markup_and_control_characters(cli: CommandLine) -> None:
    line = cli.refused("inspect", f"{ODD}\x1b[31m.onnx", code=3)
    assert ODD in line and "\x1b" not in line


# --- Processes


def run(*words: str, output: int = subprocess.PIPE, **env: str) -> tuple[int, str, list[str]]:
    """Exit code, standard output, and the lines of standard error without progress, which a busy
    machine shows."""
    done = subprocess.run(
        [*COMMAND, *words],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
        check=False,
    )
    lines = [x for x in done.stderr.splitlines() if not x.startswith("coexec: loading ")]
    return done.returncode, done.stdout, lines


def test_the_module_is_the_command() -> None:
    code, _, lines = run("inspect", "none.onnx")
    assert code == 3 and len(lines) == 1 and "none.onnx" in lines[0]
    text = "\n".join(run("inspect", "none.onnx", "--debug")[2])
    assert "Traceback" in text and "does not exist" in text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", [["--tasks"], [], ["--json"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code, _, lines = run("inspect", "zoo:lstm", *words, output=writer)
    os.close(writer)
    assert (code, lines) == (0, [])


@pytest.mark.sampled(3)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["--tasks"], [], ["--json"]])
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        code, _, (line,) = run("inspect", "zoo:lstm", *words, output=full.fileno())
    assert code == 3 and "No space left on device" in line and "make room" in line


@pytest.mark.long
def test_characters_that_the_terminal_does_not_have() -> None:
    words = ("simulate", "zoo:lstm", "--platform", "kirin_990")
    code, printed, lines = run(*words, PYTHONIOENCODING="ascii")
    assert code == 0 and "simulated" in printed, lines


# --- Progress


@pytest.mark.usefixtures("quick_choice")
def test_the_progress_of_auto_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    settings = Settings(
        [f"cpu:{core}" for core in usable_cores()[:2]],
        cache=tmp_path,
        progress=lambda *row: told.append(row),
        planner_options={"shortlist": 2},
    )
    Chooser(branches(), settings).make()
    assert all(0 <= done <= total for _, done, total in told)
    last = {what: (done, total) for what, done, total in told}
    assert {done == total for done, total in last.values()} == {True}  # each came to its end
    assert "configurations of devices" in last
    assert any(what.startswith("race of ") for what in last)
    assert any("distinct tasks" in what for what in last)  # what is measured
    told.clear()
    Chooser(branches(), settings).make()
    assert not told  # it is remembered


def test_the_progress_bar_shows_names_as_they_are(capfd: Captured) -> None:
    drawn = TextConsole(stderr=True, force_terminal=True)
    with mock.patch.object(progress, "err", drawn), progress.progress("loading") as tell:
        for done in range(2):
            tell(ODD, done, 3)
            tell("planning", 0, 0)
    assert ODD in capfd.readouterr().err


def test_progress_without_a_terminal_is_lines(
    capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOOK_S", 0.001)
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    said: list[str] = []

    def came(line: str) -> bool:
        said.extend(capfd.readouterr().err.splitlines())
        return line in said

    with progress.progress("loading m.onnx") as tell:
        until(lambda: came("coexec: loading m.onnx"))
        for done in (1, 2):
            tell("cpu:0: 9 tasks", done, 9)
            until(lambda done=done: came(f"coexec: cpu:0: 9 tasks, {done} of 9"))
    assert len(said) == len(set(said))  # nothing is said twice


def test_short_work_has_no_lines(capfd: Captured) -> None:
    with progress.progress("loading") as tell:
        tell("planning", 1, 2)
    assert capfd.readouterr() == ("", "")
