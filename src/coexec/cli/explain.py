"""`coexec explain`: why tasks are on their devices, in groups and one by one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coexec.cli.options import PLANNED, ModelArg, PlatformOpt, SettingOptions, verb
from coexec.cli.verbs import Energy, VerbOutput

if TYPE_CHECKING:
    from rich.table import Table

    from coexec.timing.explain import Group, Reason


@dataclass(frozen=True)
class Explanation(Energy):
    """Why a plan is as it is."""

    decision: Mapping[str, Any] | None
    """What auto considered: candidates with figures and reasons, and the verdict; null: another
    planner."""
    tasks: Sequence[Mapping[str, Any]]
    """By task, where it is, why, and what it would be elsewhere."""


@verb(Explanation, *PLANNED)
def command(
    model: ModelArg,
    options: SettingOptions,
    platform: PlatformOpt = None,
    top: Annotated[int, typer.Option(help="Tasks to list, the longest first.")] = 10,
    every: Annotated[bool, typer.Option("--all", help="List every task.")] = False,
) -> VerbOutput:
    """Say what auto considered, with the reason for each candidate; and why tasks are where they
    are: how much later the result of each, moved alone, would be where it is read. Groups of equal
    reasons first, then the longest tasks, or --all. Measured times are of tasks one after the
    other; with --platform nothing can run, and there are none.
    """
    from coexec.cli.decisions import decision_lines
    from coexec.cli.planned import energy_of, loaded
    from coexec.codec import encode
    from coexec.errors import UsageError
    from coexec.report.explained import explained, measured_in_place
    from coexec.timing.simulate import simulate
    from coexec.units import format_seconds

    if top < 1:
        raise UsageError(f"--top {top}: list 1 task or more")
    prepared = loaded(model, options, platform)
    trace = simulate(prepared.schedule, prepared.cost, prepared.system)
    reasons = explained(prepared, trace)
    measured_s = measured_in_place(prepared)
    decision = prepared.decision
    result = Explanation(
        None if decision is None else decision.to_json(),
        [encode(each) | {"measured_s": measured_s.get(each.task)} for each in reasons],
        **energy_of(trace, prepared.system),
    )

    def text() -> Iterator[Any]:
        yield from decision_lines(decision)
        planner = prepared.plan.provenance.planner
        yield f"plan: {planner}, predicted {format_seconds(trace.makespan_s)}"
        if result.energy:
            yield f"energy: {result.energy}"
        yield _groups(reasons)
        longest = sorted(reasons, key=lambda reason: -reason.predicted_s)
        longest = longest if every else longest[:top]
        yield _tasks([each for each in reasons if each in longest], measured_s)
        if len(reasons) > len(longest):
            yield (
                f"the {top} longest of {len(reasons)} tasks; --all lists every one, --top N more"
            )

    return VerbOutput(result, text())


def _groups(reasons: "Sequence[Reason]") -> "Table":
    """A row for equal reasons on a device; the rows with most computing time first."""
    import statistics

    from coexec.cli.console import show
    from coexec.timing.explain import GROUPS
    from coexec.units import format_seconds

    groups: dict[tuple[Group, str, str], list[Reason]] = {}
    for reason in reasons:
        groups.setdefault((reason.group, reason.device, reason.engine), []).append(reason)
    rows = []
    for (group, device, engine), own in groups.items():
        computing_s = sum(reason.predicted_s for reason in own)
        later_s = [r.elsewhere.end_s - r.here.end_s for r in own if r.elsewhere is not None]
        elsewhere = ""
        if later_s and group != "even":
            median_s = statistics.median(later_s)
            elsewhere = f"{format_seconds(abs(median_s))} {'later' if median_s > 0 else 'sooner'}"
        rows.append((computing_s, GROUPS[group], f"{device}/{engine}", len(own), elsewhere))
    return show(
        (
            (why, where, tasks, format_seconds(seconds), elsewhere)
            for seconds, why, where, tasks, elsewhere in sorted(rows, reverse=True)
        ),
        ("why", "where", "tasks", "computing", "elsewhere (median)"),
    )


def _tasks(reasons: "Sequence[Reason]", measured_s: Mapping[str, float]) -> "Table":
    from coexec.cli.console import show, text_of

    return show(
        reasons,
        {
            "task": "task",
            "where": lambda reason: f"{reason.device}/{reason.engine}",
            "predicted": "predicted_s",
            "measured": lambda reason: text_of(measured_s.get(reason.task), "_s"),
            "moved": lambda reason: text_of(reason.moved_bytes or None, "_bytes"),
            "elsewhere": "why",
        },
    )
