"""Open an export that is named instead of a model."""

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from coexec.cache import Cache, warn_once
from coexec.cache.parts import EXPORTS, chunks, keep_newest, place_parts
from coexec.engines.registry import describe
from coexec.errors import DegradedWarning, DeviceError, ForkedError, StoreError, UsageError
from coexec.exports import is_export
from coexec.exports.machine import ExportMachine
from coexec.exports.manifest import AGAIN, PARTS, PLAN, Manifest, file_below
from coexec.hardware.hardware import System
from coexec.model.digest import file_digests
from coexec.plan.plan_file import PlanFile
from coexec.selection.opened_model import opened_cache
from coexec.selection.plan_files import plan_of
from coexec.settings import Settings

__all__ = ["model_of", "resolve_export"]

_FIXED = (
    "plan",  # first: a plan also sets devices and shapes
    "devices",
    "planner",
    "planner_options",
    "shapes",
    "values",
    "engine_options",
    "pins",
    "mode",
)
"""Settings that an export fixes."""


def resolve_export(source: Any, settings: Settings) -> tuple[Any, Settings]:
    """The model of an export and the settings that it fixes; any other model is returned unchanged.

    If this machine can run the compiled parts, they are copied into the cache; else the plan is
    compiled again. A warning lists the differences between the export's machine and this one.

    Raises:
        StoreError: the export is damaged.
        DeviceError: this machine lacks a device of its plan.
        UsageError: a setting is given that the export fixes.
    """
    if not is_export(source):
        return source, settings
    folder = Path(os.path.realpath(source))
    manifest = Manifest.read(folder)
    model = folder / manifest.model
    _refuse_beside(folder, model, settings)
    for name, facts in manifest.files.items():
        file_below(folder, name, facts.size_bytes)
    whole = opened_cache(settings.cache)
    root = whole.root / EXPORTS / manifest.digest
    cache = Cache(root, whole.limit_bytes)
    _check_model(folder, manifest, cache)
    plan = _plan(folder, manifest)
    machine = _here(folder, model, manifest, plan)
    if manifest.machine.runs_on(machine):
        _take_parts(folder, manifest, root, whole)
    if unlike := manifest.machine.against(machine):
        compiled = "" if manifest.machine.runs_on(machine) else "Its plan is compiled anew. "
        warnings.warn(
            f"the export {str(folder)!r} was made on another machine: "
            f"{'; '.join(unlike)}. {compiled}Another plan may be faster here: "
            f"{_remedy(model)}",
            DegradedWarning,
            stacklevel=3,
        )
    export_settings = replace(
        settings, plan=plan, engine_options=manifest.engine_options, cache=cache
    )
    return str(model), export_settings


def model_of(folder: Any) -> str:
    """The path of the model of an export.

    Raises:
        StoreError: the export is damaged.
    """
    real = Path(os.path.realpath(folder))
    return str(real / Manifest.read(real).model)


def _refuse_beside(folder: Path, model: Path, settings: Settings) -> None:
    default = Settings()
    for name in _FIXED:
        if getattr(settings, name) != getattr(default, name):
            raise UsageError(
                f"the export {str(folder)!r} has a plan with its devices and shapes, "
                f"and {name} is given; leave it out, or name the model itself: "
                f"{model}"
            )


def _remedy(model: Path) -> str:
    return f"coexec export {model} NEW_FOLDER exports the model for this machine"


def _check_model(folder: Path, manifest: Manifest, cache: Cache) -> None:
    """Compare the model and its weights with their digests in the manifest.

    A file is not read if the cache has its digest and the file has not changed since then."""
    if manifest.model not in manifest.files:
        raise StoreError(
            f"the export {str(folder)!r} is damaged: its model {manifest.model!r} is "
            f"none of its files; {AGAIN}"
        )
    for path, digest in file_digests(folder / manifest.model, cache).items():
        name = os.path.relpath(path, folder)
        listed = manifest.files.get(name)
        if listed is None or digest is None:
            raise StoreError(
                f"the export {str(folder)!r} is damaged: its model needs {name!r}, "
                f"which is none of its files; {AGAIN}"
            )
        _check(folder, name, digest, listed.xxh3)


def _check(folder: Path, name: str, digest: str, listed: str) -> None:
    if digest != listed:
        raise StoreError(
            f"the export {str(folder)!r} is damaged at {name!r}: its digest is "
            f"{digest}, and the manifest says {listed}; {AGAIN}"
        )


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    for chunk in chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _plan(folder: Path, manifest: Manifest) -> PlanFile:
    listed = manifest.files.get(PLAN)
    if listed is None:
        raise StoreError(f"the export {str(folder)!r} is damaged: it has no {PLAN}; {AGAIN}")
    path = file_below(folder, PLAN)
    _check(folder, PLAN, _digest(path), listed.xxh3)
    plan = plan_of(path)
    assert plan is not None  # a path is given
    return plan


def _here(folder: Path, model: Path, manifest: Manifest, plan: PlanFile) -> ExportMachine:
    """This machine with the devices of the plan.

    Raises:
        DeviceError: this machine lacks a device of the plan.
    """
    made_on = manifest.machine
    try:
        devices = [describe(name, manifest.engine_options) for name in plan.plan.requests]
        return ExportMachine.here(System(tuple(devices)) if devices else made_on.system)
    except ForkedError:
        return made_on  # the session then answers without a plan, and reports the reason
    except DeviceError as error:
        where = made_on.against(ExportMachine.here(made_on.system))
        differs = f" It was made on another machine: {'; '.join(where)}." if where else ""
        raise DeviceError(
            f"the export {str(folder)!r} computes on {', '.join(plan.plan.requests)}: {error}."
            f"{differs} {_remedy(model)}"
        ) from None


def _take_parts(folder: Path, manifest: Manifest, root: Path, whole: Cache) -> None:
    """Copy the compiled parts into the cache ``root`` of this export. If they cannot be written,
    the plan is compiled again.

    Raises:
        StoreError: the export is damaged.
    """
    missing: dict[str, Path] = {}
    for name, facts in _parts(manifest).items():
        if not (root / name).exists():
            path = file_below(folder, f"{PARTS}/{name}")
            _check(folder, f"{PARTS}/{name}", _digest(path), facts)
            missing[name] = path
    try:
        place_parts(root, missing.items())
        if missing:
            keep_newest(root.parent, whole.limit_bytes, root)
    except OSError as error:
        warn_once(root, f"it cannot be written: {error.strerror or error}")
    with suppress(OSError):
        os.utime(root)  # when it was last used


def _parts(manifest: Manifest) -> Mapping[str, str]:
    """Digests of the compiled parts, by their path in a cache."""
    prefix = f"{PARTS}/"
    return {
        name.removeprefix(prefix): facts.xxh3
        for name, facts in manifest.files.items()
        if name.startswith(prefix)
    }
