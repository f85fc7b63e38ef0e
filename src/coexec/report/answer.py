"""The answer of a report, a sentence each: the choice, its gain, the reason, what bounds a request,
and what would help."""

import shlex
from collections import Counter
from collections.abc import Iterator

from coexec.extras import install, is_installed
from coexec.report.bottleneck import bottleneck_of
from coexec.report.contents import Contents
from coexec.report.ways import Way
from coexec.rules import RULES
from coexec.selection.decision import FIGURES
from coexec.selection.prepared import Prepared
from coexec.units import format_seconds


def answer_of(contents: Contents, prepared: Prepared) -> tuple[str, ...]:
    """Sentences from what the steps of a report found."""
    sentences = (
        _chosen(contents, prepared),
        _gain(contents),
        _why(contents, prepared),
        bottleneck_of(contents),
        _precision(prepared),
        _help(contents, prepared),
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


def _gain(contents: Contents) -> str:
    plan = next((row for row in contents.rivals if row.is_plan), None)
    base = next((row for row in contents.rivals if row.is_base), None)
    if plan is None or base is None or plan.measured_s is None or base.measured_s is None:
        predicted_s = contents.predicted.makespan_s if contents.predicted else 0.0
        return f"A request takes {format_seconds(predicted_s)}, simulated; nothing was measured."
    figures = f"medians of {plan.rounds} rounds {FIGURES[plan.requests]}"
    if plan is base:
        others = [row for row in contents.rivals if row.share is not None and row is not plan]
        best = min(others, key=lambda row: row.share or 0.0, default=None)
        beside = "" if best is None else f"; of the other ways, {best.name} takes {_share(best)}"
        return f"A request takes {format_seconds(plan.measured_s)}, {figures}{beside}."
    both = f"{format_seconds(plan.measured_s)} in place of {format_seconds(base.measured_s)}"
    return f"It takes {_share(plan)}: {both}, {figures}."


def _share(row: Way) -> str:
    """The time of a row that ran, beside ONNX Runtime's."""
    assert row.share is not None
    of = "of" if row.share < 1 else "times"
    return f"{row.share:.2f} {of} ONNX Runtime's time"


def _why(contents: Contents, prepared: Prepared) -> str:
    decision = prepared.decision
    if decision is not None:
        base = next((row.name for row in contents.rivals if row.is_base), None)
        if base is not None and base == decision.reference and not decision.taken.is_ort_session:
            return ""  # the rule is the gain over ONNX Runtime, which stands before
        return (decision.verdict or decision.taken.reason).rstrip(".") + "."
    seconds_by_group: Counter[str] = Counter()
    for row in contents.tasks:
        seconds_by_group[row.group] += row.predicted_s  # type: ignore[assignment]
    if not seconds_by_group:
        return "The plan has no task."
    group, seconds = seconds_by_group.most_common(1)[0]
    share = seconds / (sum(seconds_by_group.values()) or 1.0)
    planner = prepared.plan.provenance.planner
    return f"{planner} placed the tasks; the reason for {share:.0%} of the computing time: {group}."


def _precision(prepared: Prepared) -> str:
    decision = prepared.decision
    texts = () if decision is None else (decision.precision, decision.offered)
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts if text)


def _help(contents: Contents, prepared: Prepared) -> str:
    """The remedies for a slow request: candidates that were not tried, engines that are not
    installed and, for a plan of several devices, other planners by simulation."""
    parts = [
        *_untried(contents, prepared),
        *(prepared.decision.failing.values() if prepared.decision else ()),
        *_missing_engines(prepared),
        *_better_planner(contents),
    ]
    if parts:
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."
    if prepared.decision is not None:
        return "Nothing is left to try on this machine: each candidate ran, or has its reason."
    return ""


def _untried(contents: Contents, prepared: Prepared) -> Iterator[str]:
    untried = () if prepared.decision is None else prepared.decision.untried
    names = dict.fromkeys("+".join(candidate.devices) for candidate in untried)
    if names:
        model = shlex.quote(contents.model)
        yield f"More time would try {' and '.join(names)}: coexec optimize {model} --time 120"


def _missing_engines(prepared: Prepared) -> Iterator[str]:
    """The further engines for CPU cores that are not installed; nothing if the user named the
    devices."""
    if prepared.decision is None or prepared.work.settings.devices is not None:
        return
    tried = {engine for candidate in prepared.candidates for engine in candidate.engines}
    if "openvino" not in tried and not is_installed("openvino"):
        yield f"engine openvino may help and is not installed: {install('openvino')}"


def _better_planner(contents: Contents) -> Iterator[str]:
    """The planner whose plan is clearly faster by simulation, if no measurement says otherwise."""
    measured = {row.planner for row in contents.rivals if row.share is not None}
    rows = [
        (row.predicted_s, row.name)
        for row in contents.planners
        if row.predicted_s and row.name not in measured
    ]
    if contents.predicted is None or not rows:
        return
    ours_s, (best_s, best) = contents.predicted.makespan_s, min(rows)
    if best_s < RULES.gain * ours_s:
        yield (
            f"--planner {best} may help: {format_seconds(best_s)} in place of "
            f"{format_seconds(ours_s)}, both simulated"
        )
    else:
        bound = (
            f"; the lower bound is {format_seconds(contents.bound_s)}" if contents.bound_s else ""
        )
        yield (
            f"no other planner would help clearly: the best has {format_seconds(best_s)}, this "
            f"plan {format_seconds(ours_s)}, both simulated{bound}"
        )
