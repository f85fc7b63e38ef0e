"""Write a model with its plan as an export, from which sessions start without measuring."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxruntime

from coexec.cache.folder import used_entries
from coexec.cache.parts import part_files, place_parts
from coexec.engines.registry import options_of_export
from coexec.errors import CoexecError, ExecutionError, StoreError, UsageError
from coexec.exports import MANIFEST, is_export
from coexec.exports.manifest import PARTS, PLAN, Manifest, content_digest, machine_facts
from coexec.model.digest import named_files, serialized
from coexec.model.folders import ModelFolders
from coexec.ort import OrtSession
from coexec.plan.plan_file import PlanFile
from coexec.research_loader import zoo_name
from coexec.selection.comparison import Agreement, compared, known
from coexec.selection.plan_files import text_of
from coexec.selection.prepare import plan_maker, prepare
from coexec.selection.prepared import Prepared
from coexec.selection.user_model import UserModel
from coexec.session.model_source import with_values
from coexec.session.signature import Signature
from coexec.settings import Settings

_MODEL = "model"
"""Folder of the model and its weights in an export."""
_DRAFT = ".coexec-export-"
"""Beginning of the hidden folder beside an export that is being written."""
_EARLIER = "-earlier"
"""End of the name that an earlier export has until the new one is in its place."""
_ABANDONED_S = 86400.0
"""Age at which such a folder is of a process that was killed."""


@dataclass(frozen=True)
class ExportReport:
    """A finished export, and how its plan was chosen."""

    folder: Path
    manifest: Manifest
    prepared: Prepared
    """The plan, with the candidates that it was chosen from."""
    agreement: Agreement
    """The result of the comparison with ONNX Runtime."""


def export(source: Any, folder: Path | str, settings: Settings) -> ExportReport:
    """Write a folder with the model, its plan for ``settings``, and the compiled parts.

    Args:
        source: as for `InferenceSession`.
        folder: a missing or empty folder, or an export, which is replaced.

    Raises:
        UsageError: the folder has other files, or cannot be written.
        ExecutionError: the plan's results differ from ONNX Runtime's.
        CoexecError: no plan can be made.
    """
    target = check_target(folder)
    if is_export(source):
        raise UsageError(
            f"{os.fspath(source)!r} is an export already; copy it, or name the model "
            f"in it to have it planned anew"
        )
    name = _file_name(source)
    if settings.values:
        source, settings = with_values(source, settings.values), replace(settings, values={})
    chosen = prepare(source, settings)
    with _draft_beside(target) as draft:
        model = _write_model(draft / _MODEL, chosen.work.user_model, name)
        text = text_of(chosen.plan, chosen.graph, chosen.work.shapes)
        (draft / PLAN).write_text(text)
        file = PlanFile.from_json(text)
        options = options_of_export(file.plan.requests, settings.engine_options)
        plan_settings = replace(
            _without_planner(settings), plan=file, engine_options=options, cache=chosen.work.cache
        )
        agreement = _compile(str(model), plan_settings)
        with used_entries() as used:
            work = _start(str(model), plan_settings).work
        place_parts(draft / PARTS, part_files(used).items())
        manifest = Manifest(
            f"{_MODEL}/{name}",
            content_digest(model, draft / PLAN),
            options,
            machine_facts(device.spec for device in work.devices),
            {path: (draft / path).stat().st_size for path in sorted(_files_below(draft))},
        )
        manifest.write(draft)
    return ExportReport(target, manifest, chosen, agreement)


def check_target(folder: Path | str) -> Path:
    """The absolute path of the folder for an export.

    Raises:
        UsageError: other files lie there.
    """
    target = Path(os.path.realpath(folder))
    if not target.exists():
        return target
    if not target.is_dir():
        raise UsageError(f"cannot export to {str(folder)!r}: it is a file; name a folder")
    present = sorted(_files_below(target))
    try:
        files = {MANIFEST, *Manifest.read(target).files} if present else set()
    except StoreError:
        raise UsageError(
            f"cannot export to {str(folder)!r}: it has files and is no sound export; "
            f"name a folder that is empty or not there"
        ) from None
    # An export is replaced as a whole, so these files would be lost.
    if foreign := [name for name in present if name not in files]:
        raise UsageError(
            f"cannot export to {str(folder)!r}: {foreign[0]!r} in it is none of the "
            f"export's; move it away, or name another folder"
        )
    return target


def _files_below(folder: Path) -> Iterator[str]:
    """Paths below ``folder`` of everything that is no folder, and of links to folders."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


@contextmanager
def _draft_beside(target: Path) -> Iterator[Path]:
    """Context with a folder that replaces ``target`` at the end. If this fails, no draft is left.

    Raises:
        UsageError: the draft cannot be written; or, as in `check_target`, other files lie in
            ``target`` now.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for abandoned in target.parent.glob(f"{_DRAFT}*"):
            if abandoned.name.endswith(_EARLIER):
                continue  # a process was killed before it had replaced this export
            if time.time() - abandoned.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(abandoned, ignore_errors=True)
        with TemporaryDirectory(prefix=_DRAFT, dir=target.parent) as hidden:
            draft, old = Path(hidden, "new"), Path(hidden + _EARLIER)
            draft.mkdir()
            yield draft
            check_target(target)
            try:
                with suppress(FileNotFoundError):
                    os.replace(target, old)
                os.replace(draft, target)
            finally:
                if old.exists() and not target.exists():
                    os.replace(old, target)
            with suppress(FileNotFoundError):
                os.replace(old, Path(hidden, "old"))  # which is removed with the draft
    except CoexecError:  # some of these are subclasses of OSError, too
        raise
    except OSError as error:
        raise UsageError(
            f"cannot export to {str(target)!r}: {error.strerror or error}; make room or "
            f"choose another place"
        ) from None


def _without_planner(settings: Settings) -> Settings:
    """The settings for an existing plan: without devices, planner, shapes and examples."""
    default = Settings()
    return replace(
        settings,
        devices=None,
        planner=default.planner,
        planner_options={},
        pins={},
        precision=default.precision,
        shapes={},
        examples={},
        assume=False,
        fresh=False,
    )


def _file_name(source: Any) -> str:
    if (zoo := zoo_name(source)) is not None:
        return f"{zoo}.onnx"
    return Path(source).name if isinstance(source, str | os.PathLike) else "model.onnx"


def _write_model(folder: Path, opened: UserModel, name: str) -> Path:
    """Write the model and all files that it names into ``folder``. Returns the model's file.

    The model is not checked again, because a plan was made from it.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir()
    source, target = opened.resolved(), folder / name
    if not isinstance(source, str | os.PathLike):
        target.write_bytes(source if isinstance(source, bytes) else serialized(source))
        return target
    path = Path(source)
    for location in named_files(path):
        weights = folder / location
        weights.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ModelFolders(path).file(location, location), weights)
    shutil.copyfile(path, target)
    return target


def _compile(model: str, settings: Settings) -> Agreement:
    """Compile the plan and compare it with ONNX Runtime, to fill the cache for later starts.

    Raises:
        ExecutionError: the plan's results differ from ONNX Runtime's.
    """
    prepared = prepare(model, settings)
    agreement = compared(prepared)
    if agreement.reason is not None and not agreement.by_requests:
        raise ExecutionError(
            f"this plan is not exported: {agreement.reason}; make another with "
            f"--planner or --devices"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = OrtSession(model, options, providers=["CPUExecutionProvider"])
    work = prepared.work
    Signature.of(session).keep(work.cache, work.user_model.digest)
    return agreement


def _start(model: str, settings: Settings) -> Prepared:
    """Start the plan from the cache, as a session does, and close it."""
    maker = plan_maker(model, settings)
    prepared = maker.make()
    _ = maker.user_model.has_cached_digest, known(prepared)
    Signature.find(prepared.work.cache, prepared.work.user_model.digest)
    prepared.start().close()
    return prepared
