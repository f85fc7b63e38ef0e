"""`coexec check --tasks`: every task by itself, against ONNX Runtime."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from coexec.cli.checks import accepted, refuse_pretended
from coexec.cli.console import out
from coexec.cli.output import print_json
from coexec.cli.progress import Tell
from coexec.defaults import AUTO
from coexec.errors import CheckError, ExecutionError
from coexec.model.difference import Difference
from coexec.runtime.task_check import (
    PlacedPiece,
    TaskCheck,
    TaskComparison,
    pieces_of_plan,
    whole_tasks,
)
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepare import prepare
from coexec.selection.settings import Settings

__all__ = ["compare", "report"]


def compare(source: Any, config: Settings, tell: Tell) -> list[TaskComparison]:
    """All comparisons, in topological order of the tasks."""
    work, placed = _placed(source, config)
    refuse_pretended(work)
    tell("making inputs", 0, 0)
    feeds, _ = accepted(work.given)
    comparisons = []
    tell("compiling the tasks", 0, 0)
    for comparison in TaskCheck(work.compiler, work.devices, placed).compare(feeds):
        comparisons.append(comparison)
        tell("comparing tasks", len(comparisons), len(placed))
    return comparisons


def _placed(source: Any, config: Settings) -> tuple[PlanningContext, list[PlacedPiece]]:
    """Every task on each named device, or the pieces of a plan."""
    if config.devices is not None and config.plan is None and config.planner == AUTO:
        work = PlanningContext(source, config)
        places = [place for device in work.devices for place in device.spec.places]
        return work, whole_tasks(work.graph, places)
    prepared = prepare(source, config)
    return prepared.work, pieces_of_plan(prepared.graph, prepared.plan)


def report(comparisons: Sequence[TaskComparison], *, every: bool, json: bool) -> None:
    """Print the comparisons.

    Raises:
        CheckError: a task differs.
        ExecutionError: a task failed, and none differs.
    """
    counts = Counter(comparison.verdict for comparison in comparisons)
    first = next((c for c in comparisons if c.verdict == "differs"), None)
    failed = next((c for c in comparisons if c.verdict == "failed"), None)
    shown = first or failed
    facts = {
        "counts": counts,
        "tasks": [_facts(comparison) for comparison in comparisons],
        "first": None if first is None else _facts(first) | _details(first),
    }
    if not json:
        out.print(_every_task(comparisons) if every else _reasons(comparisons))
        if shown is not None:
            print("\n".join(_story(shown)))
    compared = counts["equal"] + counts["differs"]
    if first is not None:
        error = CheckError(
            f"{counts['differs']} of {compared} tasks differ from ONNX Runtime; the first is "
            f"{first.name!r} ({first.task.kind}) on {first.place}"
        )
        error.facts = facts
        raise error
    if failed is not None:
        failure = ExecutionError(
            f"{counts['failed']} tasks fail; the first is {failed.name!r} ({failed.task.kind}) on "
            f"{failed.place}: {failed.reason}"
        )
        failure.facts = facts
        raise failure
    if json:
        print_json(facts)
        return
    worst = max((c.difference.relative for c in comparisons if c.difference), default=0.0)
    out.print(
        f"no task differs from ONNX Runtime: {compared} compared, by {worst:.1e} of the largest "
        f"value at most"
        if compared
        else "no task was compared"
    )


def _reasons(comparisons: Sequence[TaskComparison]) -> Table:
    """A row for each verdict with its reason."""
    groups: dict[tuple[str, str], list[TaskComparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.verdict, comparison.reason), []).append(comparison)
    table = Table("verdict", "tasks", "because", "for example", box=None)
    for (verdict, reason), members in groups.items():
        table.add_row(verdict, str(len(members)), reason, f"{members[0].name} {members[0].place}")
    return table


def _every_task(comparisons: Sequence[TaskComparison]) -> Table:
    table = Table("task", "operators", "on", "verdict", "difference", "because", box=None)
    for comparison in comparisons:
        difference = comparison.difference
        table.add_row(
            comparison.name,
            comparison.task.kind,
            str(comparison.place),
            comparison.verdict,
            "" if difference is None else f"{difference.relative:.1e}",
            comparison.reason,
        )
    return table


def _story(comparison: TaskComparison) -> Iterator[str]:
    """All that is known about a task that differs or failed, a line each."""
    yield f"{comparison.verdict}: {comparison.name} ({comparison.task.kind}) on {comparison.place}"
    difference = comparison.difference
    if difference is None:
        yield f"  {comparison.reason}"
    elif difference.text:
        yield f"  output {comparison.output} {difference.text}"
    else:
        yield f"  output {comparison.output}: {_extent(difference, comparison.allowed)}"
        yield (
            f"  at {list(difference.where)}: {difference.found:g}, in ONNX Runtime "
            f"{difference.expected:g}"
        )
    if comparison.passes:
        yield f"  made by the passes {', '.join(comparison.passes)}"
    else:
        yield "  its operators are those of the model: no pass made them"
    yield "  its module:"
    yield from (f"    {line}" for line in comparison.lowered.splitlines())


def _extent(difference: Difference, allowed: float) -> str:
    """How much of an output differs, and by how much."""
    if difference.numbers_lost:
        return f"{difference.numbers_lost} elements have other NaN or infinity"
    if math.isinf(difference.relative):  # whole numbers
        return f"{difference.elements} elements differ"
    return (
        f"{difference.elements} elements differ, by up to {difference.relative:.2g} of the largest "
        f"value; {allowed:.0e} is allowed"
    )


def _facts(comparison: TaskComparison) -> dict[str, Any]:
    difference = comparison.difference
    return {
        "task": comparison.task.name,
        "region": None if comparison.region is None else str(comparison.region),
        "operators": comparison.task.kind,
        "place": str(comparison.place),
        "verdict": comparison.verdict,
        "reason": comparison.reason,
        "difference": None if difference is None else difference.relative,
    }


def _details(comparison: TaskComparison) -> dict[str, Any]:
    difference = comparison.difference
    assert difference is not None  # it differs
    return {
        "output": comparison.output,
        "allowed": comparison.allowed,
        "index": difference.where,
        "value": difference.found,
        "expected": difference.expected,
        "elements": difference.elements,
        "numbers_lost": difference.numbers_lost,
        "types": difference.text,
        "passes": comparison.passes,
        "module": comparison.lowered.splitlines(),
    }
