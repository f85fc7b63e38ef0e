"""The steps of a simplification: one model before and after each pass."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import onnx_ir as ir

from coexec.model.passes import PASSES, Pass, PassError, pass_of
from coexec.model.simplify import simplify
from coexec.model.text import text_of

__all__ = ["PassStep", "pass_steps"]


@dataclass(frozen=True)
class PassStep:
    """One pass on one model."""

    name: str
    before: str = ""
    """The model as text, before the pass."""
    after: str = ""
    nodes: tuple[int, int] = (0, 0)
    """Number of nodes before and after the pass."""
    made: int = 0
    """Nodes that the pass made or changed."""
    left_out: str = ""
    """Why it did not run; "" if it ran."""


def pass_steps(original: ir.Model, without: Collection[str] = ()) -> list[PassStep]:
    """The steps of all passes, in order. A pass that fails is left out, as `load` does.

    Args:
        original: with fixed shapes; it is not changed.
        without: names of passes to leave out.

    Raises:
        ModelError: shape inference refuses the model.
    """
    left_out = dict.fromkeys(without, "switched off")
    while True:
        try:
            steps = _steps(original.clone(), left_out)
        except PassError as error:
            left_out[error.name] = str(error)
            continue
        return [steps.get(n) or PassStep(n, left_out=left_out.get(n, "")) for n in PASSES]


def _steps(model: ir.Model, without: Collection[str]) -> dict[str, PassStep]:
    """The steps of the passes that run, by name."""
    steps: dict[str, PassStep] = {}

    def watch(each: Pass, model: ir.Model, after: bool) -> None:
        text, nodes = text_of(model), len(model.graph)
        if not after:
            steps[each.name] = PassStep(each.name, before=text, nodes=(nodes, nodes))
            return
        before, made = steps[each.name], sum(pass_of(node) == each.name for node in model.graph)
        steps[each.name] = replace(before, after=text, nodes=(before.nodes[0], nodes), made=made)

    simplify(model, without=without, watch=watch)
    return steps
