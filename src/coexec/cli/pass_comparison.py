"""`coexec check --passes`: the model after each pass, against the model as it was given."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from rich.table import Table

from coexec.cli.checks import accepted, own_answers
from coexec.cli.console import out
from coexec.cli.output import print_json
from coexec.errors import CheckError
from coexec.model.difference import tolerance_of
from coexec.model.pass_check import PassComparison, compare_passes
from coexec.model.passes import PASSES, check_names
from coexec.model.probe_names import ProbeName
from coexec.progress import ReportProgress
from coexec.selection.opened_model import OpenedModel, opened_cache
from coexec.settings import Settings

__all__ = ["compare", "report"]


def compare(
    source: Any, config: Settings, tell: ReportProgress, probe: ProbeName | None = None
) -> list[PassComparison]:
    """The comparisons of all passes up to the first that differs.

    ``probe``: as for `accepted`.
    """
    check_names(config.without_passes)
    opened_model = OpenedModel.of(source, config, opened_cache(config.cache))
    feeds, expected = accepted(opened_model, probe)
    comparisons = []
    for comparison in compare_passes(
        opened_model.fixed(),
        feeds,
        expected,
        tolerance_of(opened_model.model.graph),
        cache(lambda: own_answers(opened_model, feeds)),
        config.without_passes,
    ):
        comparisons.append(comparison)
        tell("comparing passes", len(comparisons), len(PASSES) + 1)
    return comparisons


def report(comparisons: Sequence[PassComparison], *, json: bool) -> None:
    """Print the comparisons.

    Raises:
        CheckError: the outputs differ after a pass.
    """
    first = next((c for c in comparisons if c.verdict == "differs"), None)
    facts = {
        "passes": {c.name: _facts(c) for c in comparisons},
        "first": None if first is None else {"pass": first.name} | _details(first),
    }
    if not json:
        table = Table("after the pass", "verdict", "difference", "because", box=None)
        for comparison in comparisons:
            difference = f"{comparison.difference:.1e}" if comparison.output else ""
            table.add_row(comparison.name, comparison.verdict, difference, comparison.reason)
        out.print(table)
    if first is not None:
        if not json:
            for line in first.nodes:
                print(f"node: {line}")
        error = CheckError(_story(first))
        error.facts = facts
        raise error
    if json:
        print_json(facts)
    else:
        out.print("no pass changes what the model computes for these inputs")


def _story(first: PassComparison) -> str:
    if first.reason:
        return f"the pass {first.name!r} makes a model that does not run: {first.reason}"
    return (
        f"with the pass {first.name!r} the output {first.output!r} differs from that of the model "
        f"as it was given, by {first.difference:.2g} of its largest value; without it: --without "
        f"{first.name}"
    )


def _facts(comparison: PassComparison) -> dict[str, Any]:
    return {
        "verdict": comparison.verdict,
        "difference": comparison.difference if comparison.output else None,
        "reason": comparison.reason,
    }


def _details(comparison: PassComparison) -> dict[str, Any]:
    return _facts(comparison) | {"output": comparison.output, "nodes": comparison.nodes}
