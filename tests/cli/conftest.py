"""Fixtures of the command line's tests."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import main, progress
from coexec.engines.detect import usable_cores
from coexec.report import race
from tests.helpers.small_models import branches

CPU = f"cpu:{usable_cores()[0]}"
TWO = ",".join(f"cpu:{core}" for core in usable_cores()[:2])


class CommandLine:
    """Calls the command line with a folder, its cache, and ``MODEL``: a small model in it."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capfd = folder, capfd
        self.model = folder / "model.onnx"
        if not self.model.exists():
            onnx.save(branches(), str(self.model))

    def save(self, proto: onnx.ModelProto, name: str) -> str:
        """The path of another model in the folder."""
        onnx.save(proto, str(self.folder / name))
        return str(self.folder / name)

    def __call__(self, *words: str, code: int = 0, cache: bool = True) -> str:
        """What is printed on standard output."""
        return self.both(*words, code=code, cache=cache)[0]

    def both(self, *words: str, code: int = 0, cache: bool = True) -> tuple[str, str]:
        """What is printed on standard output and on standard error."""
        self._capfd.readouterr()
        paths = {"MODEL": str(self.model)}
        named = [paths.get(w, w.replace("FOLDER", str(self.folder))) for w in words]
        folder = ["--cache", str(self.folder / "cache")] if cache else []
        found = main([*named, *folder])
        said = self._capfd.readouterr()
        assert found == code, said.err
        return said.out, said.err

    def json(self, *words: str, code: int = 0, cache: bool = True) -> Any:
        """The document of --json."""
        return json.loads(self(*words, "--json", code=code, cache=cache))

    def refused(self, *words: str, code: int = 2, cache: bool = True) -> str:
        """The one line of an error."""
        (line,) = self.both(*words, code=code, cache=cache)[1].splitlines()
        assert line.startswith("coexec: ") and "Traceback" not in line
        return line


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture
def shared(shared_folder: Path, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line with a cache that other tests have filled."""
    return CommandLine(shared_folder, capfd)


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line with a folder of the test's own."""
    return CommandLine(tmp_path, capfd)


@pytest.fixture(autouse=True)
def no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress has no lines, however busy the machine is."""
    monkeypatch.setattr(progress, "LOOK_S", 1e6)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`coexec bench` leaves peak memory out, which takes a new process for each row."""
    for name in ("of_plan", "of_onnx_runtime"):
        monkeypatch.setattr(race, name, lambda *_: None)
