"""`coexec check --tasks`: every task by itself, against ONNX Runtime."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from coexec.cli.checks import accepted, refuse_pretended
from coexec.cli.console import show
from coexec.errors import CheckError, ExecutionError
from coexec.model.difference import Difference
from coexec.model.probe_names import ProbeName
from coexec.plan.schedule import Segment
from coexec.progress import ReportProgress
from coexec.runtime.task_check import TaskCheck, TaskComparison, pieces_of_plan, whole_tasks
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepare import prepare
from coexec.settings import AUTO, Settings


@dataclass(frozen=True)
class Comparisons:
    """All comparisons, in topological order of the tasks."""

    tasks: Sequence[TaskComparison]
    segments: Sequence[TaskComparison]
    """Segments of several tasks of a plan; only compared if no task differs."""
    as_given: bool
    """Whether the plan runs none of them, but the whole model in the engine's own session."""

    def first(self, verdict: str) -> TaskComparison | None:
        """The first task or segment with a verdict."""
        both = (*self.tasks, *self.segments)
        return next((each for each in both if each.verdict == verdict), None)

    def facts(self) -> dict[str, Any]:
        """The fields of `coexec.cli.check.CheckResult`."""
        first = self.first("differs")
        return {
            "counts": dict(Counter(each.verdict for each in self.tasks)),
            "tasks": [_facts(each) for each in self.tasks],
            "segments": [_facts(each) for each in self.segments],
            "first": None if first is None else _facts(first) | _details(first),
        }

    def error(self) -> ExecutionError | None:
        """The fault in a sentence: a task or segment differs, or one failed."""
        if (first := self.first("differs")) is not None:
            return CheckError(self._fault(first))
        if (failed := self.first("failed")) is not None:
            where = f"{failed.name!r} ({failed.kind}) on {failed.place}"
            return ExecutionError(f"{where} fails: {failed.reason}")
        return None

    def text(self, every: bool) -> Iterator[Any]:
        """The comparisons as text: all of them, or by verdict and reason."""
        if self.as_given:
            yield (
                "the plan runs the model as it was given, in the engine's own session; compared is "
                "what coexec makes of it for this engine"
            )
        both = (*self.tasks, *self.segments)
        yield _every_task(both) if every else _by_reason(both)
        wrong = self.first("differs") or self.first("failed")
        yield self._summary() if wrong is None else "\n".join(_story(wrong))

    def _fault(self, first: TaskComparison) -> str:
        counts = Counter(each.verdict for each in self.segments or self.tasks)
        of_all = f"{counts['differs']} of {counts['equal'] + counts['differs']}"
        where = f"{first.name!r} ({first.kind}) on {first.place}"
        if not self.segments:
            return f"{of_all} tasks differ from ONNX Runtime; the first is {where}"
        return (
            f"no task differs from ONNX Runtime by itself, but {of_all} segments of the plan do; "
            f"the first is {where}: what the engine makes of these tasks together is wrong"
        )

    def _summary(self) -> str:
        """How many were compared and equal, and by how much they differ."""
        both = (*self.tasks, *self.segments)
        differences = [c.difference.relative for c in both if c.difference is not None]
        if not differences:
            return "no task was compared"
        compared = sum(c.difference is not None for c in self.tasks)
        segments = len(differences) - compared
        also = f" and {segments} segments of the plan" if self.segments else ""
        return (
            f"no task differs from ONNX Runtime: {compared} compared{also}, by "
            f"{max(differences):.1e} of the largest value at most"
        )


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
    feeds, _ = accepted(work.user_model, probe)

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


def _by_reason(comparisons: Sequence[TaskComparison]) -> Table:
    """A row for each verdict with its reason."""
    groups: dict[tuple[str, str, str], list[TaskComparison]] = {}
    for comparison in comparisons:
        unit = "tasks" if len(comparison.tasks) == 1 else "segments"
        groups.setdefault((comparison.verdict, comparison.reason, unit), []).append(comparison)
    rows = (
        (verdict, f"{len(members)} {unit}", reason, f"{members[0].name} {members[0].place}")
        for (verdict, reason, unit), members in groups.items()
    )
    return show(rows, ("verdict", "number", "because", "for example"))


def _every_task(comparisons: Sequence[TaskComparison]) -> Table:
    return show(
        comparisons,
        {
            "task": "name",
            "operators": "kind",
            "on": "place",
            "verdict": "verdict",
            "difference": lambda c: c.difference and f"{c.difference.relative:.1e}",
            "because": "reason",
        },
    )


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
