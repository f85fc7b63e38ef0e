"""What reaches the terminal: names as they are, whatever is in them; outputs that are closed."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import onnx
import pytest
from onnx import helper
from rich.table import Table

import coexec
from coexec.cli import main, progress
from coexec.cli.app import VERBS as PLAIN
from coexec.cli.cluster import VERBS as OF_CLUSTERS
from coexec.cli.console import TextConsole, out, visible
from coexec.cli.output import check_files
from coexec.engines.detect import usable_cores
from coexec.errors import StoreError
from coexec.selection.chooser import Chooser
from coexec.settings import Settings
from tests.helpers.patience import until
from tests.helpers.small_models import branches, from_nodes, tensor_info

ODD = "[gpu] [bold]a[/bold] :key: [/]"
COMMAND = [sys.executable, "-m", "coexec"]
VERBS = [*PLAIN, "cache clear", "cache trim", *(f"cluster {verb}" for verb in OF_CLUSTERS)]


def odd_model(folder: Path, name: str) -> str:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=name)]
    model = from_nodes(nodes, [tensor_info("x", [1, 4])], [tensor_info("y", [1, 4])])
    path = folder / "[red]m[bold] :key:.onnx"
    onnx.save(model, str(path))
    return str(path)


def test_strings_are_printed_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    out.print(ODD)
    table = Table(ODD, box=None)
    table.add_row(ODD + "\x1b[31m\x9b")
    out.print(table)
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


@pytest.mark.parametrize("words", [["profile"], ["explain", "--all"], ["plan"], ["inspect"]])
def test_names_with_markup_and_control_characters(
    words: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # no name is broken over two lines
    path = odd_model(tmp_path, ODD + "\x1b]0;title\x07")
    devices = [] if words == ["inspect"] else ["--devices", "null:0,null:1", "--planner", "heft"]
    devices = devices[:2] if words == ["profile"] else devices
    assert main([*words, path, *devices, "--cache", str(tmp_path / "c")]) == 0
    printed = capfd.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed
    if words[0] in ("profile", "explain"):
        assert ODD in printed


def test_errors_show_markup_and_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{ODD}\x1b[31m.onnx"]) == 3
    said = capfd.readouterr().err
    assert ODD in said and "\x1b" not in said and said.count("\n") == 1


def test_version_is_that_of_the_package(capfd: pytest.CaptureFixture[str]) -> None:
    assert coexec.__version__ == version("coexec")
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"coexec {coexec.__version__}\n"


def test_the_version_is_known_where_nothing_is_installed() -> None:
    code = (
        "import sys, coexec; assert 'importlib.metadata' not in sys.modules; "
        "print(coexec.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(coexec.__file__).parents[1])},
        check=True,
    )
    assert done.stdout.strip() == coexec.__version__  # -S: nothing is installed there


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_short_and_long(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    printed = []
    for option in ("-h", "--help"):
        assert main([*verb.split(), option]) == 0
        printed.append(capfd.readouterr().out)
    assert printed[0] == printed[1] and f"coexec {verb}" in printed[0]


def run(output: int, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *words],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
        check=False,
    )


def errors(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """The lines on standard error, without progress: a busy machine is slow."""
    return [line for line in done.stderr.splitlines() if line != "coexec: loading zoo:lstm"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", [["--tasks"], [], ["--json"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(writer, "inspect", "zoo:lstm", *words)
    os.close(writer)
    assert (done.returncode, errors(done)) == (0, [])


@pytest.mark.sampled(3)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["--tasks"], [], ["--json"]])
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(full.fileno(), "inspect", "zoo:lstm", *words)
    (line,) = errors(done)
    assert done.returncode == 3
    assert "No space left on device" in line and "make room" in line


@pytest.mark.long
def test_characters_that_the_terminal_does_not_have() -> None:
    done = subprocess.run(
        [*COMMAND, "simulate", "zoo:lstm", "--platform", "kirin_990"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0 and "simulated" in done.stdout, done.stderr


@pytest.mark.usefixtures("quick_choice")
def test_the_progress_of_auto_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    cores = [f"cpu:{core}" for core in usable_cores()[:2]]
    settings = Settings(
        cores,
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


def test_the_progress_bar_shows_names_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    drawn = TextConsole(stderr=True, force_terminal=True)
    with mock.patch.object(progress, "err", drawn), progress.progress("loading") as tell:
        for done in range(2):
            tell(ODD, done, 3)
            tell("planning", 0, 0)
    assert ODD in capfd.readouterr().err


def test_progress_without_a_terminal_is_lines(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_short_work_has_no_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.progress("loading") as tell:
        tell("planning", 1, 2)
    assert capfd.readouterr() == ("", "")
