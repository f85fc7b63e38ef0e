"""The options of a planner: the keyword-only parameters of its function ``solve``."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args, get_origin

from coexec.errors import UsageError, nearest

__all__ = ["OptionsUsed", "check_options", "made_with", "options_of"]


class OptionsUsed(Protocol):
    """The result of a planner, as far as its options are concerned."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options that the planner set itself, by name."""
        ...


def options_of(solve: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The options by name, each with its default and type."""
    parameters = inspect.signature(solve).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def made_with(
    solve: Callable[..., Any], given: Mapping[str, Any], solution: OptionsUsed
) -> dict[str, Any]:
    """The values of all options that led to a solution, by name. A value that the planner set comes
    before a value in ``given``, and that before the default."""
    defaults = {name: option.default for name, option in options_of(solve).items()}
    return {**defaults, **given, **solution.options}


def check_options(
    planner: str, known: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> None:
    """Check the names and the types of options.

    Raises:
        UsageError: the planner has no such option, or the value has another type.
    """
    for name, value in options.items():
        if name not in known:
            raise UsageError(
                f"planner {planner} has no option {name!r}"
                f"{nearest(name, known)}; it has "
                f"{', '.join(known) or 'none'}"
            )
        annotation = known[name].annotation
        if not _fits(value, annotation):
            raise UsageError(
                f"option {name} of planner {planner} is {value!r}; it wants {_wanted(annotation)}"
            )


def _fits(value: Any, annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    type_names = _wanted(annotation)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "int": isinstance(value, int) and number,
        "float": number,
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
    }
    return any(ok for kind, ok in fits.items() if kind in type_names)


def _wanted(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    return inspect.formatannotation(annotation).replace(" | None", "")
