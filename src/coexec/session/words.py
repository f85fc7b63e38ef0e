"""The arguments of a session as settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coexec import arguments
from coexec.engines.names import split_names
from coexec.exports import is_export
from coexec.session.sources import with_values
from coexec.workbench import Settings

__all__ = ["model_and_settings"]


def model_and_settings(
    model: Any, words: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Any, Settings]:
    """The model that a session opens, and how it is run.

    Args:
        model: as a program gives it.
        words: arguments with the names that `Settings` has, "values" apart; None: by default.
        values: of inputs that become constants.

    Raises:
        CoexecError: they make no sense.
    """
    source = arguments.check_model(model)
    told = {name: value for name, value in words.items() if value is not None}
    if isinstance(told.get("devices"), str):
        told["devices"] = split_names(told["devices"])
    settings = Settings(**told)
    if is_export(source):
        from coexec.exports.opening import resolve_export

        return resolve_export(source, replace(settings, values=values))
    return with_values(source, values) if values else source, settings
