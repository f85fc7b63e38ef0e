"""The arguments of a session as settings."""

from collections.abc import Mapping
from typing import Any

from coexec import arguments
from coexec.engines.names import split_names
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
    if values:
        source = with_values(source, values)
    told = {name: value for name, value in words.items() if value is not None}
    if isinstance(told.get("devices"), str):
        told["devices"] = split_names(told["devices"])
    return source, Settings(**told)
