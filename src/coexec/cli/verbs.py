"""Verbs by name, each in a file of its own that is imported when the verb is called.

A verb's file declares its options. Its function ``command`` has the slow imports inside, so help
and completion need neither engines nor NumPy. A file with an object ``group`` has verbs of its own.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

__all__ = ["ENERGY", "HELP", "Verb", "fields_of", "make_group", "prints", "show_help"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every verb."""
ENERGY = {
    "energy_j": "Joules of one inference, of all devices; null: their watts are not known.",
    "device_energy_j": "The same by device.",
}
"""Fields of the JSON documents of verbs that simulate."""
_FIELDS: dict[tuple[str, str], Mapping[str, str]] = {}
"""Meaning of the fields of a verb's JSON document, by module and name of its function."""


def prints(**fields: str) -> Callable[[_Command], _Command]:
    """Decorator that declares the meaning of the fields of a verb's JSON document."""

    def declare(command: _Command) -> _Command:
        _FIELDS[command.__module__, command.__name__] = fields
        return command

    return declare


def fields_of(command: Any) -> Mapping[str, str]:
    """The fields that a command has declared with `prints`."""
    return _FIELDS.get((command.callback.__module__, command.callback.__name__), {})


class Verb(TyperCommand):
    """A verb whose file is imported when it is called."""

    def __init__(self, package: str, name: str, summary: str) -> None:
        super().__init__(name, short_help=summary, rich_markup_mode=None)
        self._module = f"{package}.{name}"

    @cached_property
    def command(self) -> Any:
        """The command that the file declares."""
        module = import_module(self._module)
        if hasattr(module, "group"):
            return module.group
        app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP)
        app.command(self.name)(module.command)
        return get_command(app)

    def make_context(self, *words: Any, **settings: Any) -> Any:
        """The context of the imported command, which replaces this one from here on."""
        return self.command.make_context(*words, **settings)


def show_help(context: typer.Context) -> None:
    """Print the help of a group that is called without a verb."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def make_group(app: typer.Typer, package: str, verbs: Mapping[str, str]) -> TyperGroup:
    """The command of ``app``, with a verb for each file of ``package`` that ``verbs`` names.

    Args:
        verbs: one line of help for each verb, by name.
    """
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, summary in verbs.items():
        group.add_command(Verb(package, name, summary))
    return group
