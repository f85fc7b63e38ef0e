"""The options of a planner: the keyword-only parameters of its function ``solve``."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["OptionsUsed", "made_with", "options_of"]


class OptionsUsed(Protocol):
    """What a planner returns."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options that it set itself, with their values."""
        ...


def options_of(solve: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The options by name, each with its default and type."""
    parameters = inspect.signature(solve).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def made_with(
    solve: Callable[..., Any], given: Mapping[str, Any], solution: OptionsUsed
) -> dict[str, Any]:
    """All options by name with the values that made a solution: the planner's own, where it set
    one, then those that were given, then defaults."""
    defaults = {name: option.default for name, option in options_of(solve).items()}
    return {**defaults, **given, **solution.options}
