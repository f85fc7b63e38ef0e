"""Names, files and links in the docs, and in docstrings and comments of the source, exist."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

import coexec

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
FOLDERS = ("src", "docs", "tests", "benchmarks", "native", "examples")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*") if path.is_file()]
FILES += [path for path in ROOT.iterdir() if path.is_file()]
PAGES = [path for path in FILES if path.suffix == ".md"]
MODULES = sorted((SOURCE / "coexec").rglob("*.py"))

NAME = re.compile(r"(?<![\w./-])coexec(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<![\w./*-])((?:[\w-]+/)*[\w-]+\.(?:py|md))(?::([A-Za-z_][\w.]*))?(?![\w*])")
IMPORT = re.compile(r"^\s*from (coexec[\w.]*) import ([\w, ]+)$", re.MULTILINE)
URL = re.compile(r"https?://\S+")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def texts_of(module: Path) -> Iterator[str]:
    """The docstrings and comments of a module, each with the number of its first line in front."""
    code = module.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(code)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield f"{node.lineno}: {value.value}"
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield f"{token.start[0]}: {token.string}"


# Names of modules, classes, functions and attributes


@cache
def scope(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def module_file(name: str) -> Path | None:
    """The file of the module ``name``; None if there is no such module."""
    path = SOURCE.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def statements(body: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module or class, also those in ``if`` and ``try``, not in functions."""
    for node in ast.iter_child_nodes(body):
        yield node
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(node)


def targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        yield from node.targets
    elif isinstance(node, ast.AnnAssign):
        yield node.target


def defined(body: ast.Module | ast.ClassDef) -> Mapping[str, ast.AST]:
    """What a module or class defines, imports or assigns, by name; attributes of ``self`` too."""
    names: dict[str, ast.AST] = {}
    for node in statements(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = node
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name: node for alias in node.names}
        names |= {target.id: node for target in targets(node) if isinstance(target, ast.Name)}
    if isinstance(body, ast.ClassDef):
        own = (target for node in ast.walk(body) for target in targets(node))
        names |= {target.attr: body for target in own if isinstance(target, ast.Attribute)}
    return names


def has(module: Path, parts: list[str]) -> bool:
    """Whether ``module`` defines the nested name ``parts``."""
    if not parts:
        return True
    node = defined(scope(module)).get(parts[0])
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        home = module_file(node.module)
        return home is None or has(home, parts)
    if len(parts) == 1 or node is None:
        return node is not None
    if not isinstance(node, ast.ClassDef):
        return False
    if parts[1] in defined(node):
        return True
    bases = (base.id for base in node.bases if isinstance(base, ast.Name))
    return any(base in defined(scope(module)) and has(module, [base, *parts[1:]]) for base in bases)


def exists(name: str) -> bool:
    """Whether a dotted name that begins with "coexec" is a module, or a name in one."""
    parts = name.split(".")
    if hasattr(coexec, parts[1]) and len(parts) == 2:
        return True
    for length in range(len(parts), 0, -1):
        file = module_file(".".join(parts[:length]))
        if file is not None:
            return has(file, parts[length:])
    return False


def defines(name: str) -> bool:
    """Whether the last part of ``name`` is defined in the module of the others, or imported for its
    readers."""
    module, _, own = name.rpartition(".")
    file = module_file(module)
    if file is None:
        return False
    node = defined(scope(file)).get(own)
    is_face = file.name == "__init__.py" or "__all__" in defined(scope(file))
    return module_file(name) is not None or (
        is_face or (node is not None and not isinstance(node, ast.ImportFrom))
    )


def is_placeholder(path: str) -> bool:
    """Whether a part of the path stands for a name, as in ``kernels/NAME.py``."""
    return re.search(r"(?:^|[/_])(?:[A-Z]{2,}|my_package)(?:[._/]|$)", path) is not None


@cache
def files_by_name() -> Mapping[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for file in FILES:
        files.setdefault(file.name, []).append(file)
    return files


def files_like(path: str) -> list[Path]:
    """All files of the repository whose path ends with ``path``."""
    named = files_by_name().get(path.rpartition("/")[2], [])
    return [file for file in named if f"/{name_of(file)}".endswith(f"/{path}")]


def missing(text: str) -> Iterator[str]:
    """The names and paths in ``text`` that do not exist."""
    text = URL.sub("", text)
    yield from (name for name in NAME.findall(text) if not exists(name))
    for module, names in IMPORT.findall(text):
        imported = (f"{module}.{name.split()[0]}" for name in names.split(","))
        yield from (name for name in imported if not defines(name))
    for path, name in PATH.findall(text):
        files = files_like(path)
        parts = name.rstrip(".").split(".") if name else []
        if not is_placeholder(path) and not any(not parts or has(file, parts) for file in files):
            yield f"{path}:{name}" if name else path


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_and_files_on_a_page_exist(page: Path) -> None:
    assert not list(missing(page.read_text(encoding="utf-8")))


def test_names_and_files_in_docstrings_and_comments_exist() -> None:
    found = {
        f"{name_of(module)}:{text.partition(':')[0]}": wrong
        for module in MODULES
        for text in texts_of(module)
        if (wrong := list(missing(text)))
    }
    assert not found


# Links


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    seen: dict[str, int] = {}
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
    return {f"{slug}-{n}" if n else slug for slug, count in seen.items() for n in range(count + 1)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_work(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if URL.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_of_the_docs_can_be_reached_from_the_index() -> None:
    reached, waiting = set(), [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        links = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        paths = (link.partition("#")[0] for link in links if not URL.match(link))
        waiting += [(page.parent / path).resolve() for path in paths if path]
    assert {name_of(page) for page in (ROOT / "docs").rglob("*.md")} <= {*map(name_of, reached)}


def test_the_architecture_lists_the_rooms_in_the_order_of_their_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)/`", text, re.MULTILINE)
    floors = {room: int(floor) for floor, room in rows}
    assert floors.keys() == {path.parent.name for path in MODULES if path.parts[-3] == "coexec"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each.get("containers") == ["coexec"]]
    depths = {name: n for n, layer in enumerate(layers) for name in layer.split(" | ")}
    for one, other in combinations(floors, 2):
        difference = depths[one] - depths[other]  # layers are listed from the top down
        assert (floors[one] < floors[other], floors[one] == floors[other]) == (
            difference > 0,
            difference == 0,
        ), (one, other)


def test_the_example_of_the_kernel_guide_is_the_kernel() -> None:
    guide = (ROOT / "docs" / "guides" / "kernel.md").read_text(encoding="utf-8")
    shown = guide.partition("without its docstrings:")[2].partition("\n1. ")[0]
    lines = [line.removeprefix("    ") for line in shown.splitlines() if line.strip()]
    kernel = ROOT / "src" / "coexec" / "engines" / "kernels" / "softmax.py"
    assert set(lines) <= set(kernel.read_text(encoding="utf-8").splitlines())
