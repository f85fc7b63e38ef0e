"""Write a model with its plan as an export, from which sessions start without measuring."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnxruntime

from coexec.cache.folder import used_entries
from coexec.cache.parts import chunks, part_files
from coexec.errors import ExecutionError, UsageError
from coexec.exports import is_export
from coexec.exports.machine import ExportMachine
from coexec.exports.manifest import PARTS, PLAN, Manifest
from coexec.exports.writing import ExportDraft, check_target, draft_beside
from coexec.hardware.hardware import System
from coexec.model.digest import named_files, serialized
from coexec.model.folders import ModelFolders
from coexec.ort import OrtSession
from coexec.plan.plan_file import PlanFile
from coexec.research_loader import zoo_name
from coexec.selection.comparison import Agreement, compared, known
from coexec.selection.opened_model import OpenedModel
from coexec.selection.plan_files import text_of
from coexec.selection.prepare import plan_maker, prepare
from coexec.selection.prepared import Prepared
from coexec.session.model_source import with_values
from coexec.session.signature import Signature
from coexec.settings import Settings

__all__ = ["ExportReport", "export"]

_MODEL = "model"
"""Folder of the model and its weights in an export."""


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
    with draft_beside(target) as draft:
        model = _write_model(draft, chosen.work.given, name)
        text = text_of(chosen.plan, chosen.graph, chosen.work.shapes)
        draft.write(PLAN, [text.encode()])
        file = PlanFile.from_json(text)
        plan_settings = replace(_without_planner(settings), plan=file, cache=chosen.work.cache)
        agreement = _compile(str(model), plan_settings)
        with used_entries() as used:
            plan = _start(str(model), plan_settings)
        for place, path in part_files(used).items():
            draft.write(f"{PARTS}/{place}", chunks(path))
        work = plan.work
        devices = [device.spec for device in work.devices]
        inputs = {t.name: {"shape": list(t.shape), "dtype": t.dtype} for t in plan.compiled.inputs}
        manifest = draft.finish(
            f"{_MODEL}/{name}",
            inputs,
            settings.engine_options,
            ExportMachine.here(System(tuple(devices))),
        )
    return ExportReport(target, manifest, chosen, agreement)


def _without_planner(settings: Settings) -> Settings:
    """The settings for an existing plan: without devices, planner, shapes and examples."""
    default = Settings()
    return replace(
        settings,
        devices=None,
        planner=default.planner,
        planner_options={},
        pins={},
        shapes={},
        examples={},
        assume=False,
        fresh=False,
    )


def _file_name(source: Any) -> str:
    if (zoo := zoo_name(source)) is not None:
        return f"{zoo}.onnx"
    return Path(source).name if isinstance(source, str | os.PathLike) else "model.onnx"


def _write_model(draft: ExportDraft, opened: OpenedModel, name: str) -> Path:
    """Write the model and all files that it names into one folder of the export. Returns the
    model's file.

    The model is not checked again, because a plan was made from it."""
    source = opened.resolved()
    if not isinstance(source, str | os.PathLike):
        content = source if isinstance(source, bytes) else serialized(source)
        return draft.write(f"{_MODEL}/{name}", [content])
    path = Path(source)
    folders = ModelFolders(path)
    for location in named_files(path):
        content_of = chunks(folders.file(location, location))
        draft.write(f"{_MODEL}/{_plain(location)}", content_of)
    return draft.write(f"{_MODEL}/{name}", chunks(path))


def _plain(location: str) -> str:
    return Path(location).as_posix()


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
    Signature.of(session).keep(work.cache, work.given.digest)
    return agreement


def _start(model: str, settings: Settings) -> Prepared:
    """Start the plan from the cache, as a session does, and close it."""
    maker = plan_maker(model, settings)
    prepared = maker.make()
    _ = maker.given.has_cached_digest, known(prepared)
    Signature.find(prepared.work.cache, prepared.work.given.digest)
    prepared.start().close()
    return prepared
