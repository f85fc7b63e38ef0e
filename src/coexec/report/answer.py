"""The answer of a report: the choice, its gain, and the reason; a sentence each."""

from collections import Counter

from coexec.report.contents import Contents, RivalRow
from coexec.rules import RULES
from coexec.selection.decision import FIGURES
from coexec.selection.prepared import Prepared
from coexec.units import format_seconds

__all__ = ["answer_of"]


def answer_of(contents: Contents, prepared: Prepared) -> tuple[str, ...]:
    """Three sentences from what the steps of a report found."""
    return _chosen(contents, prepared), _gain(contents, prepared), _why(contents, prepared)


def _is_ort_session(prepared: Prepared) -> bool:
    return prepared.decision is not None and prepared.decision.taken.is_ort_session


def _chosen(contents: Contents, prepared: Prepared) -> str:
    places = [row.place for row in contents.memory]
    where = (
        " and ".join(places) if len(places) < 3 else f"{', '.join(places[:-1])} and {places[-1]}"
    )
    if _is_ort_session(prepared):
        return f"coexec keeps ONNX Runtime's own session for {contents.title}, on {where}."
    if prepared.plan.as_given:
        return f"coexec runs the whole of {contents.title} on {where}."
    segments = len(prepared.schedule.segments)
    return (
        f"coexec runs {contents.title} on {where}: a plan of {prepared.plan.provenance.planner} "
        f"with {len(contents.nodes)} tasks in {segments} segment{'s' if segments > 1 else ''}."
    )


def _gain(contents: Contents, prepared: Prepared) -> str:
    plan = next((row for row in contents.rivals if row.is_plan), None)
    base = next((row for row in contents.rivals if row.is_base), None)
    if plan is None or base is None:
        predicted_s = contents.predicted.makespan_s if contents.predicted else 0.0
        return f"A request takes {format_seconds(predicted_s)}, simulated; nothing was measured."
    figure, ours_s, theirs_s = _worse_figure(plan, base)
    both = f"{format_seconds(theirs_s)} to {format_seconds(ours_s)}"
    figures = f"{both}, medians of requests {figure}"
    if _is_ort_session(prepared):
        return f"That gains nothing, and two sessions differ by chance: {figures}."
    if plan.ratio >= 1 / RULES.clear_gain:
        return f"It is {plan.ratio:.2f} times as fast as {base.name}: {figures}."
    if plan.ratio > RULES.clear_gain:
        return f"It is as fast as {base.name}: {figures}."
    return f"It is slower than {base.name}, {plan.ratio:.2f} of its speed: {figures}."


def _worse_figure(plan: RivalRow, base: RivalRow) -> tuple[str, float, float]:
    """The figure by which the plan is worse beside the base, in words, and the seconds of both."""
    figures = (
        (FIGURES["paced"], plan.paced_s, base.paced_s),
        (FIGURES["loop"], plan.loop_s, base.loop_s),
    )
    return max(figures, key=lambda each: each[1] / each[2])


def _why(contents: Contents, prepared: Prepared) -> str:
    if prepared.decision is not None:
        return (prepared.decision.verdict or prepared.decision.taken.reason).rstrip(".") + "."
    seconds_by_group: Counter[str] = Counter()
    for row in contents.tasks:
        seconds_by_group[row.group] += row.predicted_s  # type: ignore[assignment]
    if not seconds_by_group:
        return "The plan has no task."
    group, seconds = seconds_by_group.most_common(1)[0]
    share = seconds / (sum(seconds_by_group.values()) or 1.0)
    return (
        f"{share:.0%} of the computing time is in tasks that are where they are for this reason: "
        f"{group}."
    )
