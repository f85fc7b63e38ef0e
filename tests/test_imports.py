"""Imports between modules: none in a circle, and none inside of a function without a reason."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

START = "a verb or session that does not need it starts sooner"
"""The reason of imports that would make every start slower."""
LAZY = {
    "coexec.cli": "help and completion import no verb, and each verb only what it runs",
    "coexec.engines.cuda.compilers": "pyopencl is optional",
    "coexec.engines.cpp.engine": f"onnx: {START}",
    "coexec.engines.cuda.engine": "cuda-bindings is optional, and most machines have no such GPU",
    "coexec.engines.onnxruntime.device": f"onnx: {START}",
    "coexec.engines.onnxruntime.engine": f"onnxruntime: {START}",
    "coexec.engines.providers.engine": "cuda-bindings is optional; onnxruntime: " + START,
    "coexec.engines.opencl.engine": "pyopencl is optional, and 40 ms for machines without it",
    "coexec.engines.openvino.cores": "openvino is optional",
    "coexec.engines.openvino.device": "openvino is optional",
    "coexec.engines.openvino.engine": f"onnx: {START}",
    "coexec.model.declared": "protobuf: a start from the cache does not read the model",
    "coexec.pipeline.cluster.cluster": "ray is optional, and reads the token when it is imported",
    "coexec.report.peak": "the process that runs ONNX Runtime has no memory of anything else",
    "coexec.selection.chooser": "planners: a start from the cache does not plan",
    "coexec.selection.comparison": f"onnxruntime: {START}",
    "coexec.selection.user_model": "onnx: a start from the cache does not read the model",
    "coexec.selection.background": "planning: only the process that plans",
    "coexec.selection.plan_selector": "planning and engines: ONNX Runtime answers first",
    "coexec.session.plan_backend": "recording and planning: few sessions need them",
    "coexec.selection.planning_context": "onnx, planners and profiling: a start from the cache",
    "coexec.selection.prepared": f"plan.derive: {START}",
    "coexec.session.request_check": "graph: only a refused request needs it",
    "coexec.session.router": f"plans: {START}",
    "coexec.session.starting": f"exports are rare; plans: {START}",
    "coexec.selection.plan_files": "plans: most sessions are not given a plan file",
    "coexec.session.model_source": "onnx: a start from the cache does not read the model",
}
"""Modules, or packages of modules, that may import coexec's own modules inside of functions: the
reason."""


class Import(NamedTuple):
    names: tuple[str, ...]
    """Possible names of the module, the longest first: "a.b" and "a" for ``from a import b``."""
    line: int
    is_lazy: bool
    """Whether it is inside of a function."""


def modules_below(folder: Path) -> dict[str, Path]:
    """The files of all modules by the names with which they are imported from ``folder``."""
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports_of(source: str) -> Iterator[Import]:
    """The imports of a module, without those for the type checker."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, is_lazy = pending.pop()
        if isinstance(node, ast.Import):
            yield from (Import((alias.name,), node.lineno, is_lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "relative imports are not used"
            for alias in node.names:
                names = (f"{node.module}.{alias.name}", node.module)
                yield Import(names, node.lineno, is_lazy)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += [(child, is_lazy) for child in node.orelse]
        else:
            inside = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            pending += [(child, inside) for child in ast.iter_child_nodes(node)]


def imports_below(folder: Path) -> Iterator[tuple[str, str, Import]]:
    """The imports of modules below ``folder`` that lead to one of them: both names."""
    files = modules_below(folder)
    for name, path in files.items():
        for found in imports_of(path.read_text()):
            for module in found.names:
                if module in files:
                    yield name, module, found
                    break


def graph_of(folder: Path) -> dict[str, set[str]]:
    """By module below ``folder``, the other modules there that it imports. That Python also runs
    the ``__init__`` of their packages does not count."""
    graph: dict[str, set[str]] = {name: set() for name in modules_below(folder)}
    for name, module, _ in imports_below(folder):
        if name != module:  # a program that imports itself under its own name
            graph[name].add(module)
    return graph


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of modules in which each one leads to all others."""
    reached = {}
    for name in graph:
        seen: set[str] = set()
        pending = list(graph[name])
        while pending:
            if (module := pending.pop()) not in seen:
                seen.add(module)
                pending += graph[module]
        reached[name] = seen
    return {
        frozenset(other for other in seen if name in reached[other])
        for name, seen in reached.items()
        if name in seen
    }


@pytest.mark.parametrize("folder", ["src", "benchmarks", "benchmarks/testbed"])
def test_no_modules_import_each_other_in_a_circle(folder: str) -> None:
    graph = graph_of(ROOT / folder)
    assert len(graph) > 10
    assert circles(graph) == set()


def allowed_by(module: str) -> set[str]:
    return {name for name in LAZY if f"{module}.".startswith(f"{name}.")}


def test_imports_inside_of_functions_have_a_reason() -> None:
    lazy = {
        f"{name}:{found.line} imports {module}": allowed_by(name)
        for name, module, found in imports_below(ROOT / "src")
        if found.is_lazy
    }
    assert [place for place, reasons in lazy.items() if not reasons] == []
    assert LAZY.keys() - set().union(*lazy.values()) == set()  # no entry that nothing needs


def test_imports_are_found_inside_of_functions_but_not_for_the_type_checker() -> None:
    source = """
import a
from b import c
if TYPE_CHECKING:
    import d
else:
    import e
class F:
    def f(self):
        from g import h
"""
    found = {(*i.names, i.is_lazy) for i in imports_of(source)}
    assert found == {("a", False), ("b.c", "b", False), ("e", False), ("g.h", "g", True)}


def test_a_circle_is_all_modules_that_lead_to_each_other() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e", "a"}}
    assert circles(graph) == {frozenset("abc"), frozenset("e")}


def test_no_default_path_imports_research() -> None:
    code = (
        "import sys, coexec.cli.bench, coexec.report.gather, coexec.selection.chooser\n"
        "import coexec.profiling.profiler, coexec.session, coexec.planners\n"
        "coexec.planners.PLANNERS['heft']\n"
        "print([name for name in sys.modules if name.startswith('coexec.research.')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def names_from(source: str) -> Iterator[tuple[str, str]]:
    """The names that a program imports from modules: module and name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    """Whether a module has this name, or a package this module."""
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        return bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "docs", "native"])
def test_programs_beside_the_package_import_what_is_there(folder: str) -> None:
    """The type checker does not read them, and most of them run only when somebody measures."""
    programs = sorted((ROOT / folder).rglob("*.py"))
    assert programs
    missing = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in programs
        for module, name in names_from(path.read_text())
        if module.partition(".")[0] == "coexec" and not is_there(module, name)
    ]
    assert missing == []
