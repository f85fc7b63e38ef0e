"""Lines of the program by room, now and at an earlier commit.

Code is what is left without docstrings, comments and blank lines. Every line is read and maintained
by everybody who comes later, so it has to pay for itself (CONTRIBUTING.md).
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

from common import show

_FOLDERS = ("src", "native", "tests")
_C = (".cpp", ".hpp", ".cl")


class Lines(NamedTuple):
    """Lines of a room: all of them, and those of code."""

    lines: int
    code: int


_NONE = Lines(0, 0)


def files(commit: str) -> Iterator[tuple[PurePath, str]]:
    """The source files of a commit, with their text."""
    words = ["git", "archive", commit, *_FOLDERS]
    packed = subprocess.run(words, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            path = PurePath(member.name)
            if path.suffix in (".py", *_C) and (file := archive.extractfile(member)) is not None:
                yield path, file.read().decode()


def room(path: PurePath) -> str:
    """``src/coexec/model/load.py`` is in "model"; the native code and the tests are one each."""
    if path.parts[0] != "src":
        return path.parts[0]
    return path.parts[2] if len(path.parts) > 3 else "the root"


def code_lines(path: PurePath, text: str) -> int:
    """How many lines have code."""
    if path.suffix in _C:
        lines = (line.strip() for line in text.splitlines())
        return sum(bool(line) and not line.startswith("//") for line in lines)
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _EMPTY:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            numbers.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(numbers)


_EMPTY = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
          tokenize.ENDMARKER)  # fmt: skip


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def rooms(commit: str) -> dict[str, Lines]:
    """The lines of each room."""
    whole, code = Counter[str](), Counter[str]()
    for path, text in files(commit):
        whole[room(path)] += text.count("\n")
        code[room(path)] += code_lines(path, text)
    return {name: Lines(whole[name], code[name]) for name in whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", help="a commit; by default the last release, or none")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args()
    tagged = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"], capture_output=True, text=True, check=False
    )
    against = options.against or tagged.stdout.strip()
    now, before = rooms("HEAD"), rooms(against) if against else {}
    product = [name for name in {**now, **before} if name not in _FOLDERS]
    for found in (now, before):
        found["src"] = Lines(
            *map(sum, zip(*(found.get(name, _NONE) for name in product), strict=True))
        )
    rows = []
    for name in sorted({*now, *before}, key=lambda name: -now.get(name, _NONE).lines):
        row: dict[str, Any] = {"room": name, **now.get(name, _NONE)._asdict()}
        if against:
            earlier = before.get(name, _NONE)
            row |= {f"{key} then": value for key, value in earlier._asdict().items()}
        rows.append(row)
    show(f"lines now{f', and then: at {against}' if against else ''}", rows, options.json)


if __name__ == "__main__":
    main()
