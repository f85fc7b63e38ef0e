"""How the command line starts and ends: modules, help, exit codes, errors for programs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import checks, main
from coexec.cli.app import VERBS
from coexec.cli.cluster import VERBS as OF_CLUSTERS
from coexec.cli.exits import CANNOT, CHECK_FAILED, DONE, WRONG_USAGE
from coexec.cli.output import SCHEMA
from coexec.engines.detect import usable_cores
from coexec.errors import CheckError, CoexecError
from coexec.extras import EXTRAS
from tests.helpers.small_models import branches

ROOT = Path(__file__).parents[2]
CPU = f"cpu:{usable_cores()[0]}"
HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "ray", "starlette"}
HELP = [["--version"], ["--help"], [], ["cache", "trim", "--help"],
        *([verb, "--help"] for verb in VERBS),
        *(["cluster", verb, "--help"] for verb in OF_CLUSTERS)]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("start") / "model.onnx"
    onnx.save(branches(), str(path))
    return str(path)


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
def test_a_group_alone_prints_its_help(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == DONE
    alone = capfd.readouterr()
    assert main([*words, "--help"]) == DONE
    assert alone == capfd.readouterr() and alone.err == ""
    verbs = OF_CLUSTERS if words else VERBS
    for verb, summary in verbs.items():
        assert re.search(rf"^  {verb} +{re.escape(summary)}$", alone.out, re.MULTILINE)


def document(capfd: pytest.CaptureFixture[str]) -> Any:
    found = json.loads(capfd.readouterr().out)
    assert found["schema"] == SCHEMA
    return found


@pytest.mark.parametrize(
    ("words", "code", "kind", "message"),
    [
        (["plan"], WRONG_USAGE, "UsageError", "Missing argument"),
        (["plan", "MODEL", "--planer", "x"], WRONG_USAGE, "UsageError", "--planner"),
        (["plan", "MODEL", "--planner", "fast"], WRONG_USAGE, "UsageError", "anneal, auto, codl"),
        (["plan", "MODEL", "--devices", "cpu:x"], WRONG_USAGE, "DeviceNameError", "cpu:0-3"),
        (["plan", "MODEL", "--devices", "cpu:4000"], CANNOT, "DeviceError", "core 4000"),
        (["inspect", "none.onnx"], CANNOT, "ModelError", "none.onnx"),
        (["run", "MODEL", "--plan", "none.json"], CANNOT, "PlanError", "none.json"),
        (["run", "MODEL", "--inputs", "none.npz"], CANNOT, "InputError", "none.npz"),
        (["plan", "MODEL", "--output", "/proc/no/plan"], CANNOT, "StoreError", "cannot write"),
    ],
)
def test_errors_are_documents_with_exit_codes(
    words: list[str],
    code: int,
    kind: str,
    message: str,
    model: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [model if word == "MODEL" else word for word in words]
    if words[0] == "plan" and "--output" in words:
        words += ["--devices", CPU, "--planner", "single", "--cache", str(tmp_path)]
    assert main([*words, "--json"]) == code
    error = document(capfd)["error"]
    assert error["kind"] == kind and message in error["message"]


def test_a_check_that_fails_is_told_from_what_cannot_be_done(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(work: Any, feeds: Any, outputs: Any) -> checks.OutputCheck:
        return checks.OutputCheck(
            dict.fromkeys(outputs, 0.5), error=CheckError("the outputs differ from ONNX Runtime's")
        )

    monkeypatch.setattr(checks, "check_outputs", wrong)
    words = ["run", model, "--devices", CPU, "--planner", "single", "--cache", str(tmp_path)]
    assert main([*words, "--check", "--json"]) == CHECK_FAILED
    found = document(capfd)
    assert found["error"]["kind"] == "CheckError" and found["latency_s"] > 0
    assert set(found["differences"].values()) == {0.5}
    assert main([*words, "--check"]) == CHECK_FAILED
    assert "differ from ONNX Runtime" in capfd.readouterr().err
    assert main(words) == DONE
    assert issubclass(CheckError, CoexecError)


def test_extras_bring_what_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names: list[str] = []
        for requirement in extras[extra]:
            (name,) = re.findall(r"^coexec\[(\w+)\]|^([\w-]+)", requirement)
            names += EXTRAS[name[0]] if name[0] else [name[1]]
        assert sorted(names) == sorted(packages), extra
    assert set(extras) == {*EXTRAS, "dev"}
