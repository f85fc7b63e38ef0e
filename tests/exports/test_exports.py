"""Exports: written as a whole, opened without measuring, and what is wrong with one is said."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import coexec
from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.errors import (
    CacheWarning,
    DegradedWarning,
    DeviceError,
    ExecutionError,
    StoreError,
    UsageError,
)
from coexec.exports import opening
from coexec.exports.manifest import Manifest, content_digest, machine_facts
from coexec.hardware.hardware import Place
from coexec.model.load import load
from coexec.plan.plan import Plan, Provenance
from coexec.plan.plan_file import PlanFile
from coexec.profiling import profiler
from coexec.selection import comparison
from coexec.session import exporting
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
    assert f"onnxruntime of {CORE}" in manifest.machine
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


def edited(folder: Path, change: Callable[[dict], object]) -> None:
    """Change the manifest."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def flip(name: str) -> Callable[[Path], object]:
    def harm(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-2] ^= 1
        (folder / name).write_bytes(content)

    return harm


def without(name: str) -> Callable[[Path], object]:
    return lambda e: edited(e, lambda d: d["files"].pop(name))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda e: (e / "model/w.bin").unlink(), "'model/w.bin': No such file"),
        (lambda e: (e / "plan.json").write_text("{ }"), "'plan.json': it has 3 bytes, and the"),
        (flip("plan.json"), "its weights or 'plan.json' are not those that were exported"),
        (flip("model/w.bin"), "its weights or 'plan.json' are not those that were exported"),
        (lambda e: (e / "manifest.json").write_text("{"), "'manifest.json': JSONDecodeError"),
        (lambda e: (e / "manifest.json").write_text("[]"), "'manifest.json': TypeError"),
        (lambda e: edited(e, lambda d: d.pop("files")), "the field 'files' is missing"),
        (lambda e: edited(e, lambda d: d.update(machine=3)), "machine: 3 is not an object"),
        (lambda e: edited(e, lambda d: d.update(format=1)), r"has format 1, written by .* reads 2"),
        (lambda e: edited(e, lambda d: d["files"].update({"../x": 1})), "'../x': it is no path"),
        (lambda e: edited(e, lambda d: d["files"].update({"/etc/hosts": 1})), "it is no path"),
        (without("plan.json"), "'plan.json': it is none of the files"),
        (without("model/m.onnx"), "'model/m.onnx': it is none of the files"),
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


def test_a_damaged_part_is_made_again(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    shutil.copytree(sound, folder)
    for name in Manifest.read(folder).files:
        if name.startswith("parts/"):
            flip(name)(folder)
    with (
        pytest.warns(CacheWarning, match="was damaged"),
        coexec.InferenceSession(folder, cache=tmp_path / "cache") as session,
        coexec.InferenceSession(sound, cache=tmp_path / "other") as whole,
    ):
        assert session.devices == (CORE,)
        for found, expected in zip(
            session.run(None, {"x": X}), whole.run(None, {"x": X}), strict=True
        ):
            assert np.array_equal(found, expected)


@pytest.fixture(scope="module")
def sound(model: Path, cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that tests copy."""
    folder = tmp_path_factory.mktemp("sound") / "e"
    export(model, folder, Settings(plan=plan_for(model), cache=cache))
    return folder


def test_an_unlike_machine_is_said_once_and_what_was_compiled_runs(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coexec.runtime import compiler

    other = {"processor": "Z80", "cores": "4+60", f"onnxruntime of {CORE}": "99 in float32"}
    monkeypatch.setattr(opening, "machine_facts", lambda d: {**machine_facts(d), **other})
    monkeypatch.setattr(compiler, "Compiler", lambda *_: pytest.fail("it compiles"))
    with pytest.warns(DegradedWarning) as said:
        session = coexec.InferenceSession(sound, cache=tmp_path / "cache")
    (text,) = [str(warning.message) for warning in said]
    assert said[0].filename == __file__
    for part in ("here Z80", "here 4+60", "here 99", "coexec export", "model/m.onnx NEW_FOLDER"):
        assert part in text
    assert session.devices == (CORE,) and session.run(["y"], {"x": X})[0].shape == (1, 48)


def test_a_device_that_is_not_here_is_one_message(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "e"
    shutil.copytree(sound, folder)
    (folder / "plan.json").write_text((folder / "plan.json").read_text().replace(CORE, "cpu:9999"))
    plan, model = folder / "plan.json", folder / "model" / "m.onnx"
    files = {name: (folder / name).stat().st_size for name in Manifest.read(sound).files}
    sealed = {"files": files, "digest": content_digest(model, plan)}
    edited(folder, lambda manifest: manifest.update(sealed))
    edited(folder, lambda manifest: manifest["machine"].update(processor="Z80"))
    message = r"e' computes on cpu:9999.* processor Z80, here .*coexec export \S*m.onnx NEW_FOLDER"
    with pytest.raises(DeviceError, match=message):
        coexec.InferenceSession(folder, cache=tmp_path / "cache", strict=True)
    with pytest.warns(DegradedWarning, match=message) as caught:
        session = coexec.InferenceSession(folder, cache=tmp_path / "cache")
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


def test_a_damaged_export_is_replaced(model: Path, settings: Settings, folder: Path) -> None:
    (folder / "model" / "w.bin").unlink()
    flip("plan.json")(folder)
    export(model, folder, settings)
    Manifest.read(folder).check_files(folder)


@pytest.mark.parametrize("off", ["COEXEC", "planner"])
def test_without_planning_the_model_is_enough(
    folder: Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setenv("COEXEC", "off" if off == "COEXEC" else "")
    shutil.rmtree(folder / "parts")
    (folder / "plan.json").unlink()
    words = {"planner": "none"} if off == "planner" else {}
    with coexec.InferenceSession(folder, **words) as session:
        assert session.run(["y"], {"x": X})[0].shape == (1, 48)
    (folder / "model" / "w.bin").unlink()
    with pytest.raises(StoreError, match=r"'model/w.bin': No such file"):
        coexec.InferenceSession(folder, **words)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("has_earlier", [True, False])
def test_an_earlier_export_stays_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_earlier: bool, error: BaseException
) -> None:
    target, replace = tmp_path / "e", os.replace
    if has_earlier:
        target.mkdir()

    def interrupted(source: Path, place: Path) -> None:
        if source.name == "new":
            raise error
        replace(source, place)

    monkeypatch.setattr(exporting.os, "replace", interrupted)
    kind = UsageError if isinstance(error, OSError) else KeyboardInterrupt
    with (
        pytest.raises(kind, match="No space left" if kind is UsageError else None),
        exporting._draft_beside(target),
    ):
        pass
    assert list(tmp_path.iterdir()) == ([target] if has_earlier else [])


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("step", ["_write_model", "place_parts", "check_target"])
def test_nothing_half_written_is_left(
    model: Path,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: BaseException,
) -> None:
    do = getattr(exporting, step)

    def full(*words: object) -> object:
        if any(tmp_path.iterdir()):  # the draft has been made
            raise error
        return do(*words)

    monkeypatch.setattr(exporting, step, full)
    kind = UsageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind, match="No space left.*make room" if kind is UsageError else None):
        export(model, tmp_path / "e", settings)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed(
    model: Path, settings: Settings, tmp_path: Path
) -> None:
    left, other = tmp_path / f"{exporting._DRAFT}0123", tmp_path / f"{exporting._DRAFT}4567"
    earlier = tmp_path / f"{exporting._DRAFT}0123{exporting._EARLIER}"  # it may be wanted back
    for folder in (left, earlier):
        folder.mkdir()
        os.utime(folder, (0, 0))
    other.mkdir()  # of another process, which is at work
    export(model, tmp_path / "e", settings)
    assert other.is_dir() and earlier.is_dir() and not left.exists()


def test_a_plan_that_computes_something_else_is_not_exported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_compared", lambda *_: comparison.Agreement(differs="it is"))
    with pytest.raises(ExecutionError, match="not exported: the plan does not compute what"):
        export(model, tmp_path / "e", Settings(plan=plan_for(model), cache=tmp_path / "cache"))
    assert not (tmp_path / "e").exists()
