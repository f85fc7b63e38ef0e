"""The passes that simplify a model, and what each did to it, for `coexec inspect`."""

import difflib
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from coexec.cli.console import out
from coexec.model.pass_steps import PassStep, pass_steps
from coexec.model.passes import PASSES, check_names
from coexec.selection.opened_model import OpenedModel, opened_cache
from coexec.settings import Settings

__all__ = ["changes", "facts", "show", "steps_of"]


def steps_of(model: str, config: Settings, name: str | None) -> list[PassStep]:
    """The steps of all passes on a model.

    Args:
        name: of the pass that is of interest; None: all are.

    Raises:
        UsageError: there is no pass of that name.
    """
    check_names([*config.without_passes, *([] if name is None else [name])])
    opened_model = OpenedModel.of(model, config, opened_cache(config.cache))
    return pass_steps(opened_model.fixed(), config.without_passes)


def facts(steps: Sequence[PassStep], name: str | None) -> dict[str, Any]:
    """Facts about each step by name of the pass, or about one pass with the texts of the model."""
    rows = {step.name: _facts(step) for step in steps}
    if name is None:
        return rows
    step = next(step for step in steps if step.name == name)
    texts = {"before": step.before.splitlines(), "after": step.after.splitlines()}
    return {name: rows[name] | texts}


def _facts(step: PassStep) -> dict[str, Any]:
    each = PASSES[step.name]
    return {
        "summary": each.summary,
        "exact": each.exact,
        "nodes_before": step.nodes[0],
        "nodes_after": step.nodes[1],
        "made": step.made,
        "left_out": step.left_out,
    }


def show(steps: Sequence[PassStep]) -> None:
    """Print a line for each pass."""
    table = Table("pass", "results", "nodes", "made", "what it does", box=None)
    for step in steps:
        each = PASSES[step.name]
        before, after = step.nodes
        table.add_row(
            step.name,
            "exact" if each.exact else "compared",
            f"left out: {step.left_out}" if step.left_out else f"{before} -> {after}",
            str(step.made or ""),
            each.summary,
        )
    out.print(table)


def changes(steps: Sequence[PassStep], name: str) -> str:
    """The lines of the model that a pass removed ("-") and added ("+"), with those around them."""
    step = next(step for step in steps if step.name == name)
    if step.left_out:
        return f"{name} was left out: {step.left_out}"
    lines = difflib.unified_diff(
        step.before.splitlines(),
        step.after.splitlines(),
        f"before {name}",
        f"after {name}",
        lineterm="",
    )
    return "\n".join(lines) or f"{name} changed nothing"
