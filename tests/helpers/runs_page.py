"""`docs/what_runs_where.md`: the operators that each engine runs, by the ONNX project's node tests.

    python -m tests.helpers.runs_page    # write the page again; minutes

Nothing is computed: each test is loaded, and each engine gives its reasons. A test compares a
sample of the page with the code (`tests/conformance/test_runs_page.py`).
"""

import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import numpy_helper

from coexec.cache import Cache
from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.engines.registry import open_devices, processors
from coexec.errors import CoexecError, first_line
from coexec.model.load import load
from tests.helpers.suite import node_cases

PAGE = Path(__file__).parents[2] / "docs" / "what_runs_where.md"
ENGINES = ("onnxruntime", "cpp", "openvino")

_NOT_RUN = "ONNX Runtime does not run the model"
_HEAD = """# What runs where

The operators of ONNX that each engine runs on CPU cores, by the ONNX project's node tests. This
page is written by `python -m tests.helpers.runs_page`, and a test compares a sample of it with the
code.

* "12": the engine takes all twelve tests of this operator. "5 of 12": it takes five of them, and
  the most frequent reason for the others follows. A test counts if the engine takes it with all
  inputs fed, or with all inputs but the first stored in the model, as weights are.
* ONNX Runtime computes the tasks that another engine does not take: in the suite, and in plans that
  have a device with ONNX Runtime. A model that ONNX Runtime itself refuses is not loaded; its
  reason is then in every column.
* Tests of a single operator count. An operator without such a test has no row.

"""


class OperatorRow(NamedTuple):
    """The tests of an operator on an engine."""

    taken: int
    tests: int
    reason: str
    """The most frequent reason for the tests that it does not take."""

    def __str__(self) -> str:
        if self.taken == self.tests:
            return str(self.tests)
        return f"{self.taken} of {self.tests}: {self.reason}"


def engines_here() -> Mapping[str, OpenEngine]:
    """The engines that work here, open on the last usable core."""
    (cpu,) = [driven for driven in processors("cpu") if driven.name == "cpu"]
    core = usable_cores()[-1]
    names = [name for name in ENGINES if name in cpu.usable]
    return {name: open_devices([f"cpu:{core}/{name}"])[0].engine for name in names}


def rows(
    engines: Mapping[str, OpenEngine], cache: Cache, only: Collection[str] | None = None
) -> dict[str, dict[str, OperatorRow]]:
    """The rows by operator and engine.

    Args:
        only: operators; None: all.
    """
    reasons: dict[str, dict[str, list[str | None]]] = {}
    for case in node_cases():
        nodes = case.model.graph.node
        operator = nodes[0].op_type if len(nodes) == 1 else ""
        if operator and (only is None or operator in only):
            by_engine = reasons.setdefault(operator, {name: [] for name in engines})
            for name, reason in _refusals(case, engines, cache).items():
                by_engine[name].append(reason)
    return {
        operator: {name: _row(found) for name, found in by_engine.items()}
        for operator, by_engine in sorted(reasons.items())
    }


def _row(found: list[str | None]) -> OperatorRow:
    refused = Counter(_general(reason) for reason in found if reason is not None)
    first = min(refused, key=lambda reason: (-refused[reason], reason), default="")
    return OperatorRow(found.count(None), len(found), first)


def _general(reason: str) -> str:
    """The reason without names and numbers of a single test."""
    reason = re.sub(r"(?<!\w)'[^']*'", "'…'", reason)
    reason = re.sub(r"/\S+:\d+ |\([^)]*\bargs?\b[^)]*\)", "", reason)
    return re.sub(r"\[[^\]]*\]|\b\d+(?:\.\d+)?\b", "…", reason).replace("|", "/")[:160]


def _refusals(case: Any, engines: Mapping[str, OpenEngine], cache: Cache) -> dict[str, str | None]:
    """The reason of each engine; None where it takes the test."""
    found: dict[str, str | None] = {}
    for model in (case.model, _stored(case)):
        if model is None:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = load(model, shapes=_shapes(model, case)).graph
        except CoexecError as error:
            reason = first_line(error)
            if reason.startswith(_NOT_RUN):
                reason = _NOT_RUN
            found = dict.fromkeys(engines, reason) | found
            continue
        for name, engine in engines.items():
            if found.get(name, "") is not None:
                refusals = (engine.refusal(task, graph.tensors) for task in graph.tasks)
                found[name] = next((r for r in refusals if r is not None), None)
    return found


def _stored(case: Any) -> onnx.ModelProto | None:
    """The model with all inputs but the first stored; None if they are no tensors."""
    inputs = case.data_sets[0][0]
    if len(inputs) < 2 or not all(hasattr(value, "dtype") for value in inputs):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    fed = list(model.graph.input)
    try:
        stored = [numpy_helper.from_array(v, i.name) for i, v in zip(fed[1:], inputs[1:])]  # noqa: B905
    except (TypeError, ValueError, KeyError):
        return None
    del model.graph.input[1:]
    model.graph.initializer.extend(stored)
    return model


def _shapes(model: onnx.ModelProto, case: Any) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for info, value in zip(model.graph.input, case.data_sets[0][0]):  # noqa: B905
        dims = info.type.tensor_type.shape.dim
        if not all(d.HasField("dim_value") for d in dims) and hasattr(value, "shape"):
            shapes[info.name] = tuple(value.shape)
    return shapes


def page_rows(text: str) -> Iterable[tuple[str, ...]]:
    """The cells of the page's table of operators."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith(("| operator", "| engine")):
            yield tuple(cell.strip() for cell in line.strip("|").split("|"))


def page(found: Mapping[str, Mapping[str, OperatorRow]]) -> str:
    lines = ["| engine | all tests | some tests | no test |", "|---|---|---|---|"]
    for name in ENGINES:
        own = [by_engine[name] for by_engine in found.values()]
        whole = sum(row.taken == row.tests for row in own)
        none = sum(row.taken == 0 for row in own)
        lines.append(f"| {name} | {whole} operators | {len(own) - whole - none} | {none} |")
    lines += ["", f"| operator | {' | '.join(ENGINES)} |", "|---" * (len(ENGINES) + 1) + "|"]
    for operator, by_engine in found.items():
        lines.append(f"| {operator} | {' | '.join(str(by_engine[name]) for name in ENGINES)} |")
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    here = engines_here()
    if absent := set(ENGINES) - here.keys():
        sys.exit(f"the page needs all engines, without: {', '.join(sorted(absent))}")
    PAGE.write_text(page(rows(here, Cache())), encoding="utf-8")
