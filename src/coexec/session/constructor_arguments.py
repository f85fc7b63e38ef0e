"""Convert the arguments of a session to settings."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coexec import arguments
from coexec.engines.names import split_names
from coexec.errors import DegradedWarning
from coexec.exports import is_export
from coexec.session.model_source import in_files, with_values
from coexec.settings import NONE, Settings, is_off

__all__ = ["model_and_settings", "warn_without_plan"]


def model_and_settings(
    model: Any, words: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Any, Settings, str | None]:
    """The model that a session opens, its settings, and why nothing is planned; None: it is.

    Args:
        model: as a program passes it.
        words: arguments with the names of `Settings`, except "values". None: the default.
        values: of inputs that become constants.

    Raises:
        CoexecError: an argument is invalid.
    """
    source = arguments.check_model(model)
    if is_off():
        words = {"planner": NONE}  # settings for plans have no meaning then
    keywords = {name: value for name, value in words.items() if value is not None}
    if isinstance(keywords.get("devices"), str):
        keywords["devices"] = split_names(keywords["devices"])
    settings = Settings(**keywords)
    unplanned = None
    if settings.planner == NONE:
        unplanned = "COEXEC=off in the environment" if is_off() else "planner='none'"
        unplanned += " switches planning off"
    if is_export(source):
        from coexec.exports.opening import model_of, resolve_export

        if unplanned is None:
            return *resolve_export(source, replace(settings, values=values)), None
        source = model_of(source)
    if not values:
        return source, settings, unplanned
    if isinstance(source, str | os.PathLike) and in_files(source, values) is not None:
        return source, replace(settings, values=values), unplanned
    return with_values(source, values), settings, unplanned


def warn_without_plan(reason: str) -> None:
    """Warn that ONNX Runtime answers in place of the plan that the user has given.

    Called by functions that a session's constructor calls: the warning names the line that calls
    the constructor.
    """
    text = f"{reason}. ONNX Runtime's own session answers in its place; strict=True raises an error"
    warnings.warn(text, DegradedWarning, stacklevel=4)
