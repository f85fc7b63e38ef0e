"""Open an export that is named instead of a model."""

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from coexec.cache import Cache, warn_once
from coexec.cache.parts import EXPORTS, keep_newest, place_parts
from coexec.engines.registry import describe
from coexec.errors import DegradedWarning, DeviceError, ForkedError, StoreError, UsageError
from coexec.exports import MANIFEST, is_export
from coexec.exports.manifest import AGAIN, PARTS, PLAN, Manifest, content_digest, machine_facts
from coexec.keys import digest
from coexec.plan.plan_file import PlanFile
from coexec.selection.plan_files import plan_of
from coexec.selection.user_model import opened_cache
from coexec.settings import Settings

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
    "precision",
)
"""Settings that an export fixes."""


def resolve_export(source: Any, settings: Settings) -> tuple[Any, Settings]:
    """The model of an export and the settings that it fixes; any other model is returned unchanged.

    The entries of the export are copied into a cache of its own. They serve if their keys, which
    depend on the machine, are equal here; else the plan is compiled again. A warning lists the
    differences between the export's machine and this one.

    Raises:
        StoreError: the export is damaged.
        DeviceError: this machine lacks a device of its plan.
        UsageError: a setting is given that the export fixes.
    """
    if not is_export(source):
        return source, settings
    folder = Path(os.path.realpath(source))
    manifest = Manifest.read(folder)
    manifest.check_files(folder)
    model = folder / manifest.model
    _refuse_beside(folder, model, settings)
    whole = opened_cache(settings.cache)
    # Entries of a foreign export must not serve other models.
    root = whole.root / EXPORTS / digest((folder / MANIFEST).read_bytes())
    cache = Cache(root, whole.limit_bytes)
    if content_digest(model, folder / PLAN, cache) != manifest.digest:
        raise StoreError(
            f"the export {str(folder)!r} is damaged: {manifest.model!r}, its weights or {PLAN!r} "
            f"are not those that were exported; {AGAIN}"
        )
    plan = plan_of(folder / PLAN)
    assert plan is not None  # a path is given
    _warn_unlike(folder, model, manifest, plan)
    _take_parts(folder, manifest, root, whole)
    return str(model), replace(
        settings, plan=plan, engine_options=manifest.engine_options, cache=cache
    )


def model_of(folder: Any) -> str:
    """The path of the model of an export. The plan and the compiled parts may be missing.

    Raises:
        StoreError: the manifest, or a file beside the model, is damaged.
    """
    real = Path(os.path.realpath(folder))
    manifest = Manifest.read(real)
    manifest.check_files(real, manifest.model.rpartition("/")[0])
    return str(real / manifest.model)


def _refuse_beside(folder: Path, model: Path, settings: Settings) -> None:
    default = Settings()
    for name in _FIXED:
        if getattr(settings, name) != getattr(default, name):
            raise UsageError(
                f"the export {str(folder)!r} has a plan with its devices and shapes, "
                f"and {name} is given; leave it out, or name the model itself: "
                f"{model}"
            )


def _warn_unlike(folder: Path, model: Path, manifest: Manifest, plan: PlanFile) -> None:
    """Warn if this machine differs from the one on which the export was made.

    Raises:
        DeviceError: this machine lacks a device of the plan.
    """
    remedy = f"coexec export {model} NEW_FOLDER exports the model for this machine"
    try:
        devices = [describe(name, manifest.engine_options) for name in plan.plan.requests]
    except ForkedError:  # the start of the plan raises it again
        return
    except DeviceError as error:
        here = machine_facts(())
        unlike = _unlike({fact: manifest.machine.get(fact, "") for fact in here}, here)
        differs = f" It was made on another machine: {unlike}." if unlike else ""
        raise DeviceError(
            f"the export {str(folder)!r} computes on {', '.join(plan.plan.requests)}: {error}."
            f"{differs} {remedy}"
        ) from None
    if unlike := _unlike(manifest.machine, machine_facts(devices)):
        warnings.warn(
            f"the export {str(folder)!r} was made on another machine: {unlike}. What does not fit "
            f"this machine is compiled anew. Another plan may be faster here: {remedy}",
            DegradedWarning,
            stacklevel=5,
        )


def _unlike(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """The facts of the export's machine that differ here, with both values."""
    return "; ".join(
        f"{fact} {value or 'unknown'}, here {here.get(fact) or 'unknown'}"
        for fact, value in there.items()
        if value != here.get(fact)
    )


def _take_parts(folder: Path, manifest: Manifest, root: Path, whole: Cache) -> None:
    """Copy the entries into the cache ``root`` of this export. If they cannot be written, the plan
    is compiled again."""
    prefix = f"{PARTS}/"
    names = [n.removeprefix(prefix) for n in manifest.files if n.startswith(prefix)]
    missing = [(name, folder / PARTS / name) for name in names if not (root / name).exists()]
    try:
        place_parts(root, missing)
        if missing:
            keep_newest(root.parent, whole.limit_bytes, root)
    except OSError as error:
        warn_once(root, f"it cannot be written: {error.strerror or error}")
    with suppress(OSError):
        os.utime(root)  # when it was last used
