"""The answer of a report, a sentence each: the choice, its gain, the reason, what bounds a request,
and what would help."""

from collections import Counter
from collections.abc import Mapping

from coexec.report.bottleneck import bottleneck_of
from coexec.report.contents import Contents, RivalRow
from coexec.rules import RULES
from coexec.selection.decision import FIGURES
from coexec.selection.prepared import Prepared
from coexec.timing.explain import GROUPS, Group
from coexec.units import format_seconds

__all__ = ["answer_of", "doubt_by_load", "doubt_of", "is_ort_session"]

_GROUP_REASONS: Mapping[Group, str] = {
    "pinned": "the user pinned the tasks to their devices",
    "only": "the plan has only one device",
    "alone": "no other device runs the tasks",
    "computing": "the tasks compute faster on their device than on another one",
    "inputs": "a copy of the inputs to another device would cost more than it would gain",
    "waiting": "the other devices are busy with other tasks at that time",
    "result": "the readers of the result are on the same device, and a copy would cost more than "
    "another device would gain",
    "even": "another device would be equally good",
    "later": "another device would end the task sooner, and all tasks together later",
}
_REASONS = {GROUPS[group]: text for group, text in _GROUP_REASONS.items()}


def answer_of(contents: Contents, prepared: Prepared) -> tuple[str, ...]:
    """Sentences from what the steps of a report found."""
    sentences = (
        _chosen(contents, prepared),
        _gain(contents, prepared),
        _why(contents, prepared),
        bottleneck_of(contents),
        _help(contents),
    )
    return tuple(sentence for sentence in sentences if sentence)


def doubt_of(prepared: Prepared) -> str | None:
    """Why the choice of planner "auto" is not certain; None if it is, or if there was none."""
    decision = prepared.decision
    if decision is None:
        return None
    return decision.doubt or doubt_by_load(decision.others)


def doubt_by_load(others: float) -> str | None:
    """Why figures of a race are not certain: other programs used this share of the processors."""
    if others <= RULES.busy:
        return None
    return f"other programs used {others:.0%} of the processors' time during the race"


def is_ort_session(prepared: Prepared) -> bool:
    """Whether planner "auto" took ONNX Runtime's own session."""
    return prepared.decision is not None and prepared.decision.taken.is_ort_session


def _chosen(contents: Contents, prepared: Prepared) -> str:
    places = [row.place for row in contents.memory]
    where = (
        " and ".join(places) if len(places) < 3 else f"{', '.join(places[:-1])} and {places[-1]}"
    )
    if is_ort_session(prepared):
        return f"coexec keeps ONNX Runtime's own session for {contents.title}, on {where}."
    if prepared.plan.as_given:
        return f"coexec runs the whole of {contents.title} on {where}."
    segments = len(prepared.schedule.segments)
    is_divided = len(contents.tasks) != len(contents.nodes)
    pieces = f", divided into {len(contents.tasks)} pieces," if is_divided else ""
    ending = "s" if segments > 1 else ""
    return (
        f"coexec runs {contents.title} on {where}: a plan of {prepared.plan.provenance.planner} "
        f"with {len(contents.nodes)} tasks{pieces} in {segments} segment{ending}."
    )


def _gain(contents: Contents, prepared: Prepared) -> str:
    plan = next((row for row in contents.rivals if row.is_plan), None)
    base = next((row for row in contents.rivals if row.is_base), None)
    if plan is None or base is None:
        predicted_s = contents.predicted.makespan_s if contents.predicted else 0.0
        return f"A request takes {format_seconds(predicted_s)}, simulated; nothing was measured."
    if plan is base:
        others = [row for row in contents.rivals if row is not plan]
        figures = f"{format_seconds(plan.paced_s)}, median {FIGURES['paced']}"
        beside = "".join(f"; {row.name} {format_seconds(row.paced_s)}" for row in others)
        return f"A request takes {figures}{beside}."
    figure, ours_s, theirs_s = _worse_figure(plan, base)
    both = f"{format_seconds(theirs_s)} to {format_seconds(ours_s)}"
    figures = f"{both}, medians of requests {figure}"
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
    planner = prepared.plan.provenance.planner
    return f"{planner} placed the tasks; for {share:.0%} of the computing time, {_REASONS[group]}."


def _help(contents: Contents) -> str:
    """What would make a request faster, by the plans that were simulated; "" without such plans."""
    if contents.predicted is None or not contents.planners:
        return ""
    ours_s = contents.predicted.makespan_s
    rows = [(row.predicted_s, row.name) for row in contents.planners if row.predicted_s]
    best_s, best = min(rows, default=(ours_s, ""))
    if best_s < RULES.clear_gain * ours_s:
        return (
            f"--planner {best} would help: {format_seconds(best_s)} in place of "
            f"{format_seconds(ours_s)}, simulated."
        )
    bound = f"; the lower bound is {format_seconds(contents.bound_s)}" if contents.bound_s else ""
    return (
        f"No other planner would help clearly: the best has {format_seconds(best_s)}, this plan "
        f"{format_seconds(ours_s)}, simulated{bound}."
    )
