"""Convert the arguments of a session to settings."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coexec import arguments
from coexec.engines.names import split_names
from coexec.exports import is_export
from coexec.session.model_source import in_files, with_values
from coexec.settings import Settings

__all__ = ["model_and_settings"]


def model_and_settings(
    model: Any, words: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Any, Settings]:
    """The model that a session opens, and its settings.

    Args:
        model: as a program passes it.
        words: arguments with the names of `Settings`, except "values". None: the default.
        values: of inputs that become constants.

    Raises:
        CoexecError: an argument is invalid.
    """
    source = arguments.check_model(model)
    keywords = {name: value for name, value in words.items() if value is not None}
    if isinstance(keywords.get("devices"), str):
        keywords["devices"] = split_names(keywords["devices"])
    settings = Settings(**keywords)
    if is_export(source):
        from coexec.exports.opening import resolve_export

        return resolve_export(source, replace(settings, values=values))
    if not values:
        return source, settings
    if isinstance(source, str | os.PathLike) and in_files(source, values) is not None:
        return source, replace(settings, values=values)
    return with_values(source, values), settings
