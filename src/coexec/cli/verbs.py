"""Verbs by name, each in a file of its own that is imported when the verb is called.

A verb's file declares its options. Its function ``command`` has the slow imports inside, so help
and completion need neither engines nor NumPy. A file with an object ``group`` has verbs of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from coexec.errors import ExecutionError
from coexec.units import format_joules

_Command = TypeVar("_Command", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every verb."""
_RESULTS: dict[tuple[str, str], type | Mapping[str, str]] = {}
"""Class of a verb's result, or the meaning of its fields, by module and name of its function."""


@dataclass(frozen=True, kw_only=True)
class Energy:
    """The energy of an inference by simulation."""

    energy_j: float | None
    """Joules of one inference, of all devices; null: their watts are not known."""
    device_energy_j: Mapping[str, float] | None
    """The same by device."""

    @property
    def energy(self) -> str | None:
        """Both as text: "1.92 J (cpu:4-7 1.20 J, gpu:0 720 mJ), simulated"; None: not known."""
        if self.energy_j is None or self.device_energy_j is None:
            return None
        each = (f"{name} {format_joules(joules)}" for name, joules in self.device_energy_j.items())
        return f"{format_joules(self.energy_j)} ({', '.join(each)}), simulated"


class VerbOutput(NamedTuple):
    """The output of a verb, for programs and for people."""

    result: Any
    """A dataclass: its fields are the members of the JSON document."""
    text: Iterable[Any] = ()
    """Lines and tables to print without --json."""
    error: ExecutionError | None = None
    """Ends the verb after its text; with --json, its document has the members of the result."""

    def print(self, json: bool) -> None:
        """Print the document or the text.

        Raises:
            ExecutionError: the verb ends with an error.
        """
        from coexec.cli.console import out
        from coexec.cli.output import members, print_json

        if json and self.error is None:
            print_json(self.result)
        for part in () if json else self.text:
            out.print(part)
        if self.error is not None:
            self.error.facts = members(self.result)
            raise self.error


def prints(result: type | None = None, **fields: str) -> Callable[[_Command], _Command]:
    """Decorator that declares the class of a verb's result, or the meaning of its fields."""

    def declare(command: _Command) -> _Command:
        _RESULTS[command.__module__, command.__name__] = result or fields
        return command

    return declare


def result_of(command: Any) -> type | Mapping[str, str]:
    """The declaration of a command by `prints`."""
    return _RESULTS.get((command.callback.__module__, command.callback.__name__), {})


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
