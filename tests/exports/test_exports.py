"""Exports: written as a whole, opened without measuring, and what is wrong with one is said."""

import errno
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import coexec
from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.errors import (
    DegradedWarning,
    DeviceError,
    ExecutionError,
    StoreError,
    UsageError,
)
from coexec.exports import opening, writing
from coexec.exports.machine import ExportMachine
from coexec.exports.manifest import Manifest, digest_of_bytes
from coexec.hardware.hardware import Device, Place, System
from coexec.model.load import load
from coexec.plan.plan import Plan, Provenance
from coexec.plan.plan_file import PlanFile
from coexec.profiling import profiler
from coexec.selection import comparison
from coexec.session.exporting import export
from coexec.settings import Settings
from tests.helpers.small_models import branches, from_nodes, tensor_info

CORE = f"cpu:{usable_cores()[0]}"
X = np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "Profiler", lambda *_, **__: pytest.fail("it measures"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With its weights in another file."""
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    onnx.save_model(
        branches(), str(path), save_as_external_data=True, location="w.bin", size_threshold=64
    )
    return path


def plan_for(model: Path) -> PlanFile:
    """All tasks on one core, as coexec rewrites them: there is something to compile."""
    graph = load(model).graph
    pieces = tuple(graph.whole_piece(task) for task in graph.tasks)
    place = Place(CORE, "onnxruntime")
    return PlanFile(Plan.of_places(graph.fingerprint, {place: pieces}, Provenance("single")))


@pytest.fixture
def settings(model: Path, cache: Cache) -> Settings:
    return Settings(plan=plan_for(model), cache=cache)


@pytest.fixture
def folder(model: Path, settings: Settings, tmp_path: Path) -> Path:
    export(model, tmp_path / "e", settings)
    return tmp_path / "e"


def test_a_session_starts_from_what_was_compiled(
    folder: Path, model: Path, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coexec.InferenceSession(model, plan=plan_for(model), cache=cache) as before:
        expected = before.run(None, {"x": X})
    moved = folder.rename(tmp_path / "moved")
    from coexec.runtime import compiler

    monkeypatch.setattr(compiler, "Compiler", lambda *_: pytest.fail("it compiles"))
    monkeypatch.setattr(comparison, "_compare", lambda *_: pytest.fail("it compares"))
    for _ in range(2):
        with coexec.InferenceSession(moved, cache=tmp_path / "cache") as session:
            assert session.devices == (CORE,) and session.degraded is None
            for found, wanted in zip(session.run(None, {"x": X}), expected, strict=True):
                assert np.array_equal(found, wanted)
            assert [a.name for a in session.get_inputs()] == ["x"]


def test_what_is_written(folder: Path, model: Path) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"manifest.json", "plan.json", "model/m.onnx", "model/w.bin"} < names
    manifest = Manifest.read(folder)
    assert names == {"manifest.json", *manifest.files}
    assert (folder / "model" / "w.bin").read_bytes() == model.with_name("w.bin").read_bytes()
    data = json.loads((folder / "manifest.json").read_text())
    assert data["inputs"] == {"x": {"shape": [1, 3, 20, 20], "dtype": "float32"}}
    assert data["machine"]["devices"][0]["engine"]["name"] == "onnxruntime"
    (folder.parent / "any").mkdir()
    (folder.parent / "any" / "file").touch()
    like = folder.parent / "any"
    for path, other in ((folder, like), (folder / "plan.json", like / "file")):
        assert path.stat().st_mode == other.stat().st_mode


def test_values_are_a_part_of_the_model(tmp_path: Path, cache: Cache) -> None:
    add = onnx.helper.make_node("Add", ["x", "b"], ["y"], "add")
    proto = from_nodes(
        [add], [tensor_info("x", ["N", 2]), tensor_info("b", [2])], [tensor_info("y", ["N", 2])]
    )
    onnx.save(proto, str(tmp_path / "a.onnx"))
    asked = Settings(
        devices=[CORE], planner="single", shapes={"N": 3}, values={"b": [1.0, 2.0]}, cache=cache
    )
    export(str(tmp_path / "a.onnx"), tmp_path / "e", asked)
    with coexec.InferenceSession(tmp_path / "e", cache=tmp_path / "cache") as session:
        assert [(a.name, a.shape) for a in session.get_inputs()] == [("x", [3, 2])]
        assert session.devices == (CORE,)
        found = session.run(None, {"x": np.zeros((3, 2), np.float32)})[0]
        assert found.tolist() == [[1.0, 2.0]] * 3


def edited(folder: Path, change: Callable[[dict], object], *, sealed: bool = True) -> None:
    """Change the manifest, with its digest or without."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    digest = data.pop("digest")
    change(data)
    if sealed:
        digest = digest_of_bytes(json.dumps(data, sort_keys=True).encode())
    path.write_text(json.dumps({**data, "digest": digest}))


def flip(name: str) -> Callable[[Path], object]:
    def harm(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-2] ^= 1
        (folder / name).write_bytes(content)

    return harm


def linked(name: str) -> Callable[[Path], object]:
    def harm(folder: Path) -> None:
        (folder / name).symlink_to((folder / name).rename(folder.with_name("aside")))

    return harm


def renamed(to: str) -> Callable[[Path], object]:
    return lambda e: edited(e, lambda d: d["files"].update({to: d["files"].pop("plan.json")}))


def without(name: str) -> Callable[[Path], object]:
    return lambda e: edited(e, lambda d: d["files"].pop(name))


def plans_of(folder: Path) -> str:
    return next(name for name in Manifest.read(folder).files if name.startswith("parts/plans/"))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda e: (e / "model/w.bin").unlink(), "'model/w.bin': No such file"),
        (lambda e: (e / "plan.json").unlink(), "'plan.json': No such file"),
        (lambda e: (e / "plan.json").write_text("{ }"), "'plan.json': it has 3 bytes, and the"),
        (flip("plan.json"), r"'plan.json': its digest is \w+, and the manifest says \w+"),
        (flip("model/w.bin"), "'model/w.bin': its digest"),
        (lambda e: flip(plans_of(e))(e), r"'parts/plans/\w+': its digest"),
        (lambda e: (e / "manifest.json").write_text("{"), "manifest.json' is damaged"),
        (lambda e: (e / "manifest.json").write_text("[]"), "manifest.json' is damaged"),
        (lambda e: edited(e, lambda d: d.pop("files")), "manifest.json' is damaged: KeyError"),
        (lambda e: edited(e, lambda d: d["machine"].update(devices=3)), "json' is damaged: "),
        (lambda e: edited(e, lambda d: d.update(model="model/n"), sealed=False), "was changed"),
        (lambda e: edited(e, lambda d: d.update(format=2)), r"has format 2, written by .* reads 1"),
        (renamed("../secret"), "'../secret', which is no path below"),
        (renamed("/etc/hosts"), "'/etc/hosts', which is no path below"),
        (renamed("a//b"), "'a//b', which is no path below"),
        (without("plan.json"), "has no plan.json"),
        (without("model/w.bin"), "needs 'model/w.bin', which is none"),
        (without("model/m.onnx"), "its model 'model/m.onnx' is none"),
        (linked("manifest.json"), "manifest.json' is a symbolic link"),
        (linked("model"), "model' is a symbolic link"),
        (linked("plan.json"), "plan.json' is a symbolic link"),
    ],
)
def test_damage_is_one_message(
    sound: Path, tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "e"
    shutil.copytree(sound, folder)
    harm(folder)
    with pytest.raises(StoreError, match=message) as caught:
        coexec.InferenceSession(folder, cache=tmp_path / "cache")
    assert "export the model again" in str(caught.value)


@pytest.fixture(scope="module")
def sound(model: Path, cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that tests copy."""
    folder = tmp_path_factory.mktemp("sound") / "e"
    export(model, folder, Settings(plan=plan_for(model), cache=cache))
    return folder


def test_an_unlike_machine_is_said_once(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ExportMachine.here

    def elsewhere(system: System) -> ExportMachine:
        device = system.devices[0]
        engine = replace(device.engine, version="99")
        other = System((replace(device, processor="Z80", engine=engine),))
        return replace(here(other), cores=(4, 60), processor="Z80")

    monkeypatch.setattr(ExportMachine, "here", elsewhere)
    with pytest.warns(DegradedWarning) as said:
        session = coexec.InferenceSession(sound, cache=tmp_path / "cache")
    (text,) = [str(warning.message) for warning in said]
    for part in ("here Z80", "here 4+60", "here 99", "coexec export", "model/m.onnx NEW_FOLDER"):
        assert part in text
    assert session.devices == (CORE,) and session.run(["y"], {"x": X})[0].shape == (1, 48)


def test_more_cores_are_said_and_what_was_compiled_runs(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coexec.runtime import compiler

    here = ExportMachine.here
    monkeypatch.setattr(ExportMachine, "here", lambda system: replace(here(system), cores=(4, 60)))
    monkeypatch.setattr(compiler, "Compiler", lambda *_: pytest.fail("it compiles"))
    with pytest.warns(DegradedWarning, match=r"cores \d+, here 4\+60\. Another plan may be"):
        coexec.InferenceSession(sound, cache=tmp_path / "cache").close()


def test_a_device_that_is_not_here_is_one_message(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, options: object) -> Device:
        raise DeviceError(f"device {name!r} does not exist")

    monkeypatch.setattr(opening, "describe", missing)
    message = r"computes on cpu.*does not exist.*coexec export"
    with pytest.raises(DeviceError, match=message):
        coexec.InferenceSession(sound, cache=tmp_path / "cache", strict=True)
    with pytest.warns(DegradedWarning, match=message) as caught:
        session = coexec.InferenceSession(sound, cache=tmp_path / "cache")
    assert len(caught) == 1 and caught[0].filename == __file__
    with session:
        assert session.devices == () and re.search(message, str(session.degraded))
        assert session.run(["y"], {"x": X})[0].shape == (1, 48)


@pytest.mark.parametrize(
    "words",
    [
        {"devices": "cpu:0"},
        {"planner": "heft"},
        {"shapes": {"N": 1}},
        {"values": {"x": 1}},
        {"mode": "throughput"},
        {"engine_options": {"opencl": {"precision": "fp16"}}},
    ],
)
def test_what_an_export_says_itself_is_refused_beside_it(sound: Path, words: dict) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(words))} is given; leave it out"):
        coexec.InferenceSession(sound, **words)


@pytest.mark.filterwarnings("ignore::coexec.errors.CacheWarning")
def test_a_cache_that_cannot_be_written_is_no_hindrance(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with coexec.InferenceSession(sound, cache=tmp_path / "file" / "cache") as session:
        assert session.devices == (CORE,)


def test_what_is_no_export_is_not_touched(model: Path, settings: Settings, tmp_path: Path) -> None:
    for target, message in ((model.parent, "has files and is no sound export"), (model, "a file")):
        before = sorted(model.parent.rglob("*"))
        with pytest.raises(UsageError, match=message):
            export(model, target, settings)
        assert sorted(model.parent.rglob("*")) == before


def test_an_export_is_replaced_unless_it_has_files_of_others(
    model: Path, settings: Settings, folder: Path, sound: Path
) -> None:
    first = (folder / "manifest.json").stat().st_ino
    export(model, folder, settings)
    assert (folder / "manifest.json").stat().st_ino != first
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"'notes.txt' in it is none of the export's"):
        export(model, folder, settings)
    assert (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="is an export already"):
        export(sound, folder.with_name("other"), settings)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("at", ["model/m.onnx", "plan.json", "parts/", "manifest.json"])
def test_nothing_half_written_is_left(
    model: Path,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    error: BaseException,
) -> None:
    def full(path: Path, parts: object) -> None:
        if f"/{at}" in str(path):
            path.write_bytes(b"half")
            raise error
        write_new(path, parts)

    write_new = writing.write_new
    monkeypatch.setattr(writing, "write_new", full)
    kind = UsageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind, match="No space left.*make room" if kind is UsageError else None):
        export(model, tmp_path / "e", settings)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed(
    model: Path, settings: Settings, tmp_path: Path
) -> None:
    left = tmp_path / f"{writing._DRAFT}0123"
    left.mkdir()
    with writing.draft_beside(tmp_path / "other") as draft:  # another process is at work
        export(model, tmp_path / "e", settings)
        assert draft.folder.is_dir() and not left.exists()


def test_a_plan_that_computes_something_else_is_not_exported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_compared", lambda *_: comparison.Agreement(differs="it is"))
    with pytest.raises(ExecutionError, match="not exported: the plan does not compute what"):
        export(model, tmp_path / "e", Settings(plan=plan_for(model), cache=tmp_path / "cache"))
    assert not (tmp_path / "e").exists()
