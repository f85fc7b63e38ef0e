"""Consoles that print text without interpreting it.

Names of models, nodes, files and packages may contain any characters. Rich would read `[gpu]` as
markup and `:key:` as a picture, and a terminal reads control characters as commands.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

__all__ = ["TextConsole", "Trimmed", "err", "out", "visible"]

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


out = TextConsole(soft_wrap=True)
err = TextConsole(stderr=True)
