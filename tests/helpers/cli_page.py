"""`docs/cli.md`: every verb of the command line with its options, exit codes, JSON documents.

python -m tests.helpers.cli_page    # write the page again
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from coexec.cli.app import group
from coexec.cli.exits import EXIT_CODES
from coexec.cli.output import SCHEMA
from coexec.cli.verbs import Verb, result_of

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

_HEAD = """# The command line

`coexec` alone lists the verbs, `coexec VERB --help` the options of one. This page is written by
`python -m tests.helpers.cli_page`, and a test compares it with the code.

Results are printed on standard output. Progress, warnings and errors are on standard error: bars on
a terminal, plain lines where it is a file or a pipe, every few seconds. Tables are as wide as the
terminal; where there is none, a row is a line. `COLUMNS` sets another width. The library logs when
planning begins, ends or is refused, at level INFO of the logger `coexec`.

## Completion

    coexec --install-completion     # for the present shell: bash, zsh, fish or PowerShell
    coexec --show-completion        # print it, to install it by hand

Verbs, options and values of options are completed after a restart of the shell.

## Exit codes

| code | |
|---|---|
"""

_JSON = f"""
An error is one line on standard error that begins with `coexec: `. `--debug` shows where it arose.

## JSON

With `--json` a verb prints one document on standard output, an object. Seconds are in `_s`, bytes
in `_bytes`, joules in `_j`; infinity and NaN are null. `schema` is {SCHEMA}: it becomes another
number when a field goes or changes its meaning; new fields may come at any time. The fields of each
verb are below. After an error the document has the field `error`, beside the fields that were known
by then, and the exit code is one of the table:

    {{"schema": {SCHEMA}, "error": {{"kind": "ModelError", "message": "..."}}}}

`kind` is a class of `coexec.errors`, or `MemoryError` or `OSError`.
"""


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Every command with its words, such as "cluster plan", and its context."""
    yield from _below("", group, _context(group, "coexec", None))


def _below(words: str, above: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    for name, command in above.commands.items():
        loaded = command.command if isinstance(command, Verb) else command
        path, own = f"{words} {name}".strip(), _context(loaded, name, context)
        yield path, loaded, own
        if hasattr(loaded, "commands"):
            yield from _below(path, loaded, own)


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def fields_of(command: Any) -> Mapping[str, str]:
    """The meaning of the fields of a command's JSON document, by name: the docstrings of its
    result, those of a base at the end."""
    result = result_of(command)
    if not isinstance(result, type):
        return result
    texts: dict[str, str] = {}
    for form in filter(is_dataclass, result.__mro__):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(form))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[ast.unparse(field.target)] = inspect.cleandoc(ast.literal_eval(text.value))
    return texts


def page() -> str:
    """The text of the page."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return _HEAD + codes + _JSON + "".join(_section(*each) for each in commands())


def _section(words: str, command: Any, context: Any) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    text = f"\n## coexec {words}\n\n    coexec {words} {usage}\n\n{command.help}\n"
    options = [option for option in command.get_params(context) if option.name != "help"]
    rows = [row for option in options if (row := option.get_help_record(context))]
    if rows:
        text += "\n| option | |\n|---|---|\n"
        text += "".join(f"| `{_cell(name)}` | {_cell(meaning)} |\n" for name, meaning in rows)
    if fields := fields_of(command):
        text += "\n| field of `--json` | |\n|---|---|\n"
        text += "".join(f"| `{name}` | {_cell(meaning)} |\n" for name, meaning in fields.items())
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
