"""One name, one class: no two classes under ``src/coexec`` share a name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import coexec

ROOT = Path(coexec.__file__).parent


def classes(source: str) -> Iterator[str]:
    """The names of all classes in a module, nested ones too. A leading underscore does not tell
    one name from another."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for name in classes(path.read_text()):
            homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(homes) > 100
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_nested_and_private_classes_count() -> None:
    source = "class A:\n    class _B: ...\ndef f():\n    class C: ..."
    assert sorted(classes(source)) == ["A", "B", "C"]
