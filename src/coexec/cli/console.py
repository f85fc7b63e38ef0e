"""How text reaches the terminal: as it is.

Names of models, nodes, files and packages may hold anything. Rich would take `[gpu]` for markup and
`:key:` for a picture, and a terminal takes control characters for commands.
"""

import os
import re
from typing import Any

from rich.console import Console, ConsoleDimensions
from rich.text import Text

__all__ = ["TextConsole", "err", "out", "visible"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_WIDE = 10000
"""Characters in a line of what is no terminal: tables that programs read have a row in a line."""


def visible(text: str) -> str:
    """``text`` with its control characters, except for tabs and line ends, as ``\\x1b``."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class TextConsole(Console):
    """Prints strings, also those in the cells of tables, without looking for markup in them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    @property  # type: ignore[misc]  # nothing sets it
    def size(self) -> ConsoleDimensions:
        found = super().size
        fixed = self.is_terminal or "COLUMNS" in os.environ
        return found if fixed else ConsoleDimensions(_WIDE, found.height)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # Rich would end the process


out = TextConsole(soft_wrap=True)
err = TextConsole(stderr=True)
