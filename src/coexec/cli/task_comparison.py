"""`coexec check --tasks`: every task by itself, against ONNX Runtime."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rich.table import Table

from coexec.cli.checks import accepted, refuse_pretended
from coexec.cli.console import out
from coexec.cli.output import print_json
from coexec.errors import CheckError, ExecutionError
from coexec.model.difference import Difference
from coexec.model.probe_names import ProbeName
from coexec.plan.schedule import Segment
from coexec.progress import ReportProgress
from coexec.runtime.task_check import TaskCheck, TaskComparison, pieces_of_plan, whole_tasks
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepare import prepare
from coexec.settings import AUTO, Settings

__all__ = ["Comparisons", "compare", "report"]


class Comparisons(NamedTuple):
    """All comparisons, in topological order of the tasks."""

    tasks: list[TaskComparison]
    segments: list[TaskComparison]
    """Segments of several tasks of a plan; only compared if no task differs."""
    as_given: bool = False
    """Whether the plan runs none of them, but the whole model in the engine's own session."""


def compare(
    source: Any, config: Settings, tell: ReportProgress, probe: ProbeName | None = None
) -> Comparisons:
    """Compare every task on each named device, or the pieces of a plan and then its segments.

    ``probe``: as for `accepted`.
    """
    if config.devices is not None and config.plan is None and config.planner == AUTO:
        work, schedule, as_given = PlanningContext(source, config), None, False
        places = [device.spec.place for device in work.devices]
        pieces = whole_tasks(work.graph, places)
    else:
        prepared = prepare(source, config)
        work, pieces = prepared.work, pieces_of_plan(prepared.graph, prepared.plan)
        schedule = work.schedule(replace(prepared.plan, as_given=False))
        as_given = prepared.plan.as_given
    refuse_pretended(work)
    tell("making inputs", 0, 0)
    feeds, _ = accepted(work.given, probe)

    def compared(segments: Sequence[Segment], what: str) -> list[TaskComparison]:
        tell(f"compiling {what}", 0, 0)
        comparisons = []
        for comparison in TaskCheck(work.compiler, work.devices, segments).compare(feeds):
            comparisons.append(comparison)
            tell(f"comparing {what}", len(comparisons), len(segments))
        return comparisons

    tasks = compared(pieces, "tasks")
    if schedule is None or any(c.verdict in ("differs", "failed") for c in tasks):
        return Comparisons(tasks, [], as_given)
    several = [segment for segment in schedule.segments if len(segment.pieces) > 1]
    return Comparisons(tasks, compared(several, "segments") if several else [], as_given)


def report(comparisons: Comparisons, *, every: bool, json: bool) -> None:
    """Print the comparisons.

    Raises:
        CheckError: a task or a segment differs.
        ExecutionError: one failed, and none differs.
    """
    tasks, segments, as_given = comparisons
    both = [*tasks, *segments]
    first = next((c for c in both if c.verdict == "differs"), None)
    failed = next((c for c in both if c.verdict == "failed"), None)
    facts = {
        "counts": Counter(c.verdict for c in tasks),
        "tasks": [_facts(comparison) for comparison in tasks],
        "segments": [_facts(comparison) for comparison in segments],
        "first": None if first is None else _facts(first) | _details(first),
    }
    if json and first is None and failed is None:
        print_json(facts)
    if not json:
        if as_given:
            out.print(
                "the plan runs the model as it was given, in the engine's own session; compared is "
                "what coexec makes of it for this engine"
            )
        out.print(_every_task(both) if every else _reasons(both))
        if (wrong := first or failed) is not None:
            out.print("\n".join(_story(wrong)))
    if first is not None:
        raise _with_facts(CheckError(_sentence(first, tasks, segments)), facts)
    if failed is not None:
        text = f"{failed.name!r} ({failed.kind}) on {failed.place} fails: {failed.reason}"
        raise _with_facts(ExecutionError(text), facts)
    if not json:
        out.print(_summary(tasks, segments))


def _with_facts(error: ExecutionError, facts: Mapping[str, Any]) -> ExecutionError:
    error.facts = facts
    return error


def _sentence(
    first: TaskComparison, tasks: Sequence[TaskComparison], segments: Sequence[TaskComparison]
) -> str:
    """The fault in one sentence. Segments are compared only if no task differs."""
    counts = Counter(comparison.verdict for comparison in segments or tasks)
    of_all = f"{counts['differs']} of {counts['equal'] + counts['differs']}"
    where = f"{first.name!r} ({first.kind}) on {first.place}"
    if not segments:
        return f"{of_all} tasks differ from ONNX Runtime; the first is {where}"
    return (
        f"no task differs from ONNX Runtime by itself, but {of_all} segments of the plan do; the "
        f"first is {where}: what the engine makes of these tasks together is wrong"
    )


def _summary(tasks: Sequence[TaskComparison], segments: Sequence[TaskComparison]) -> str:
    """How many were compared and equal, and by how much they differ."""
    differences = [c.difference.relative for c in (*tasks, *segments) if c.difference is not None]
    if not differences:
        return "no task was compared"
    compared = sum(c.difference is not None for c in tasks)
    also = f" and {len(differences) - compared} segments of the plan" if segments else ""
    return (
        f"no task differs from ONNX Runtime: {compared} compared{also}, by {max(differences):.1e} "
        f"of the largest value at most"
    )


def _reasons(comparisons: Sequence[TaskComparison]) -> Table:
    """A row for each verdict with its reason."""
    groups: dict[tuple[str, str, str], list[TaskComparison]] = {}
    for comparison in comparisons:
        unit = "tasks" if len(comparison.tasks) == 1 else "segments"
        groups.setdefault((comparison.verdict, comparison.reason, unit), []).append(comparison)
    table = Table("verdict", "number", "because", "for example", box=None)
    for (verdict, reason, unit), members in groups.items():
        example = f"{members[0].name} {members[0].place}"
        table.add_row(verdict, f"{len(members)} {unit}", reason, example)
    return table


def _every_task(comparisons: Sequence[TaskComparison]) -> Table:
    table = Table("task", "operators", "on", "verdict", "difference", "because", box=None)
    for comparison in comparisons:
        difference = comparison.difference
        table.add_row(
            comparison.name,
            comparison.kind,
            str(comparison.place),
            comparison.verdict,
            "" if difference is None else f"{difference.relative:.1e}",
            comparison.reason,
        )
    return table


def _story(comparison: TaskComparison) -> Iterator[str]:
    """All that is known about a task that differs or failed, a line each."""
    yield f"{comparison.verdict}: {comparison.name} ({comparison.kind}) on {comparison.place}"
    difference = comparison.difference
    if difference is None:
        yield f"  {comparison.reason}"
    elif difference.text:
        yield f"  output {comparison.output} {difference.text}"
    else:
        yield f"  output {comparison.output}: {_extent(difference, comparison.allowed)}"
        yield (
            f"  at {list(difference.where)}: {difference.actual:g}, in ONNX Runtime "
            f"{difference.expected:g}"
        )
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
        "task": comparison.tasks[0].name if len(comparison.tasks) == 1 else comparison.name,
        "region": None if comparison.region is None else str(comparison.region),
        "operators": comparison.kind,
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
        "value": difference.actual,
        "expected": difference.expected,
        "elements": difference.elements,
        "numbers_lost": difference.numbers_lost,
        "types": difference.text,
        "module": comparison.lowered.splitlines(),
    }
