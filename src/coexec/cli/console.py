"""Consoles that print text without interpreting it.

Names of models, nodes, files and packages may contain any characters. Rich would read `[gpu]` as
markup and `:key:` as a picture, and a terminal reads control characters as commands.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from coexec.units import format_bytes, format_count, format_joules, format_seconds

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_WIDE = 10000
"""Width in characters if the output is no terminal, so that each row of a table is one line."""


def visible(text: str) -> str:
    """``text`` with its control characters, except for tabs and line ends, as ``\\x1b``."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class TextConsole(Console):
    """A console that prints strings without markup, also in the cells of tables."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    @property  # type: ignore[misc]  # nothing sets it
    def size(self) -> ConsoleDimensions:
        terminal_size = super().size
        fixed = self.is_terminal or "COLUMNS" in os.environ
        return terminal_size if fixed else ConsoleDimensions(_WIDE, terminal_size.height)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # Rich would end the process


@dataclass(frozen=True)
class Trimmed:
    """``content`` without blanks at the ends of its lines."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segments in console.render_lines(self.content, options, pad=False):
            line = Text.assemble(*((each.text, each.style or "") for each in segments))
            line.rstrip()
            yield line


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "_s": format_seconds,
    "_bytes": format_bytes,
    "_j": format_joules,
    "macs": format_count,
}
"""How numbers are written, by the end of a name."""


def text_of(value: Any, name: str = "") -> str:
    """A value as text, by the unit at the end of its name; None is no text."""
    if value is None or isinstance(value, str):
        return value or ""
    for ending, form in _UNITS.items():
        if name.endswith(ending):
            return form(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def show(rows: Iterable[Any], columns: Sequence[str] | Mapping[str, Any]) -> Table:
    """A table. Long texts are folded, not cut off.

    Args:
        rows: dataclasses and the like; or sequences of cells.
        columns: by title, the name of a field or a function of a row; or only the titles.
    """
    table = Table(box=None)
    for title in columns:
        table.add_column(title, overflow="fold")
    for row in rows:
        cells = (
            [
                text_of(of(row) if callable(of) else getattr(row, of), str(of))
                for of in columns.values()
            ]
            if isinstance(columns, Mapping)
            else map(text_of, row)
        )
        table.add_row(*cells)
    return table


def labelled(texts: Mapping[str, str | None]) -> Iterator[str]:
    """A line for each text, behind its label; none for None."""
    for label, text in texts.items():
        if text is not None:
            yield f"{label:10} {text}"


out = TextConsole(soft_wrap=True)
err = TextConsole(stderr=True)
