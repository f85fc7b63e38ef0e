"""Names the first pass after which a model computes other results.

The model is simplified again and again, each time by one pass more, and ONNX Runtime runs it on the
same inputs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir

from coexec.errors import ModelError, first_line
from coexec.model.difference import is_rounding, worst_difference
from coexec.model.infer import complete
from coexec.model.passes import PASSES, PassError, pass_of
from coexec.model.reference_session import plain_session
from coexec.model.simplify import simplify
from coexec.model.text import line_of
from coexec.model.types import type_of
from coexec.model.values import run_session

__all__ = ["NO_PASS", "PassComparison", "compare_passes"]

NO_PASS = "(no pass)"
"""Name of the comparison of the model whose shapes alone were inferred."""


@dataclass(frozen=True)
class PassComparison:
    """The model after a pass and all passes before it, compared with the given model."""

    name: str
    verdict: Literal["equal", "differs", "left out"]
    difference: float = 0.0
    """Relative to the largest value of the output that differs most."""
    output: str = ""
    """That output."""
    reason: str = ""
    """Why it was left out, or why ONNX Runtime does not run the model after it."""
    nodes: tuple[str, ...] = ()
    """The nodes with the first other result, a line each; those that the pass made, if it made
    some."""


def compare_passes(
    original: ir.Model,
    feeds: Mapping[str, Any],
    expected: Mapping[str, Any],
    allowed: float,
    own_difference: Callable[[], float],
    without: Collection[str] = (),
) -> Iterator[PassComparison]:
    """A comparison for each pass, in order, until one differs.

    Args:
        original: with fixed shapes; it is not changed.
        expected: its outputs.
        allowed: largest difference that counts as equal, relative to the largest value.
        own_difference: returns how much ONNX Runtime's own answers differ.
        without: names of passes to leave out.

    Raises:
        ModelError: shape inference refuses the model.
    """
    left_out = dict.fromkeys(without, "switched off")
    before = original
    for number, name in enumerate([NO_PASS, *PASSES]):
        if name not in left_out:
            later = list(PASSES)[number:]
            try:
                model = _simplified(original, {*left_out, *later})
            except PassError as error:
                left_out[name] = str(error)
        if name in left_out:
            yield PassComparison(name, "left out", reason=left_out[name])
            continue
        try:
            outputs = _run(model, feeds, list(expected))
        except ModelError as error:
            yield PassComparison(name, "differs", float("inf"), reason=str(error))
            return
        differences = {n: worst_difference(outputs[n], expected[n]) for n in expected}
        output = max(differences, key=differences.__getitem__)
        worst = differences[output]
        if worst > allowed and not is_rounding(worst, own_difference()):
            nodes = _first_other(before, model, feeds, allowed, name)
            lines = tuple(map(line_of, nodes))
            yield PassComparison(name, "differs", worst, output, nodes=lines)
            return
        yield PassComparison(name, "equal", worst, output)
        before = model


def _simplified(original: ir.Model, without: Collection[str]) -> ir.Model:
    model = original.clone()
    simplify(model, without=without)
    if complete(model):  # as `load` does
        simplify(model, without=without)
        complete(model)
    return model


def _run(model: ir.Model, feeds: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Outputs by name.

    Raises:
        ModelError: ONNX Runtime does not run the model.
    """
    session = plain_session(model, 1)
    try:
        return dict(zip(names, run_session(session, names, feeds), strict=True))
    except Exception as error:
        raise ModelError(f"ONNX Runtime does not run the model: {first_line(error)}") from None


def _first_other(
    before: ir.Model, after: ir.Model, feeds: Mapping[str, Any], allowed: float, name: str
) -> list[ir.Node]:
    """The first node of ``after`` whose result differs from the result of that name in ``before``.
    Instead, the nodes that the pass ``name`` made between that result and the equal ones."""
    common = [n for n in _results(after) if n in _results(before)]
    values = [_run(_with_outputs(model, common), feeds, common) for model in (before, after)]
    maker = _results(after)
    for value in common:
        if worst_difference(values[1][value], values[0][value]) > allowed:
            behind = _back_to(maker[value], {n for n in common if n != value})
            return [node for node in behind if pass_of(node) == name] or [maker[value]]
    return []


def _results(model: ir.Model) -> dict[str, ir.Node]:
    """The node of each tensor that is computed, by its name, in order."""
    return {
        value.name: node
        for node in model.graph
        for value in node.outputs
        if value.name and (type_of(value) or "").startswith("tensor(")
    }


def _with_outputs(model: ir.Model, names: Collection[str]) -> ir.Model:
    copy = model.clone()
    copy.graph.sort()
    by_name = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs[:] = [by_name[name] for name in names]
    return copy


def _back_to(node: ir.Node, compared: Collection[str]) -> list[ir.Node]:
    """``node`` and the nodes before it, as far back as values are not ``compared``."""
    nodes, stack = {node: None}, [node]
    while stack:
        for value in stack.pop().inputs:
            maker = None if value is None or value.name in compared else value.producer()
            if maker is not None and maker not in nodes:
                nodes[maker] = None
                stack.append(maker)
    return list(nodes)
