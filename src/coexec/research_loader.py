"""Loads by name what reproduces the papers: the models "zoo:NAME", and the simulated phones.

`coexec.research` is imported here, by name, and by no other room (a contract in pyproject.toml).
"""

from importlib import import_module
from typing import Any

__all__ = ["ZOO", "load_research", "resolved_model"]

ZOO = "zoo:"
"""Prefix of the name of a model of the zoo."""


def load_research(package: str) -> Any:
    """The package of `coexec.research` with this name."""
    return import_module(f"coexec.research.{package}")


def resolved_model(source: Any) -> Any:
    """The model itself; a model of the zoo is built.

    Raises:
        ModelError: the zoo has no such model.
    """
    if isinstance(source, str) and source.startswith(ZOO):
        return load_research("zoo").build(source.removeprefix(ZOO))
    return source
