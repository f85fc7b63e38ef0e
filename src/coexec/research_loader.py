"""Loads by name what reproduces the papers: models "zoo:NAME", phones, trained predictors.

`coexec.research` is imported here, by name, and by no other room (a contract in pyproject.toml).
"""

from importlib import import_module
from typing import Any

_ZOO = "zoo:"


def load_research(package: str) -> Any:
    """The package of `coexec.research` with this name."""
    return import_module(f"coexec.research.{package}")


def zoo_name(source: Any) -> str | None:
    """NAME, if the source of a model is "zoo:NAME"; None for every other source."""
    is_of_zoo = isinstance(source, str) and source.startswith(_ZOO)
    return source.removeprefix(_ZOO) if is_of_zoo else None


def resolved_model(source: Any) -> Any:
    """The model itself; a model of the zoo is built.

    Raises:
        ModelError: the zoo has no such model.
    """
    name = zoo_name(source)
    return source if name is None else load_research("zoo").build(name)
