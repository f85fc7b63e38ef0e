"""`coexec explain`: why tasks are on their devices, in groups and one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from coexec.cli.options import (
    PLANNED,
    DebugOpt,
    JsonOpt,
    ModelArg,
    PlatformOpt,
    SettingOptions,
    takes,
)
from coexec.cli.verbs import ENERGY, prints

if TYPE_CHECKING:
    from coexec.selection.prepared import Prepared
    from coexec.timing.explain import Reason
    from coexec.timing.trace import Trace


@prints(
    decision="What auto considered: candidates with figures and reasons, and the verdict; null: "
    "another planner.",
    tasks="By task, where it is, why, and what it would be elsewhere.",
    **ENERGY,
)
@takes(*PLANNED)
def command(
    model: ModelArg,
    options: SettingOptions,
    platform: PlatformOpt = None,
    top: Annotated[int, typer.Option(help="Tasks to list, the longest first.")] = 10,
    every: Annotated[bool, typer.Option("--all", help="List every task.")] = False,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Say what auto considered, with the reason for each candidate; and why tasks are where they
    are: how much later the result of each, moved alone, would be where it is read. Groups of equal
    reasons first, then the longest tasks, or --all. Measured times are of tasks one after the
    other; with --platform nothing can run, and there are none.
    """
    from coexec.cli.planned import prepared_on
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.report.in_place import measured_in_place
    from coexec.timing.explain import explain
    from coexec.timing.simulate import simulate

    if top < 1:
        raise UsageError(f"--top {top}: list 1 task or more")
    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        prepared = prepared_on(platform, model, config)
        cost, system = prepared.cost, prepared.system
    trace = simulate(prepared.schedule, cost, system)
    pinned = prepared.work.pinned_tasks(cost, system) if platform is None else ()
    reasons = explain(prepared.plan, prepared.schedule, cost, system, pinned, trace)
    measured = measured_in_place(prepared) if platform is None else {}
    if json:
        _print_facts(prepared, reasons, measured, trace)
        return
    _print_plan(prepared, trace)
    _print_reasons(reasons, measured, len(reasons) if every else top)


def _print_facts(
    prepared: "Prepared", reasons: Sequence["Reason"], measured: Mapping[str, float], trace: "Trace"
) -> None:
    """Print the JSON document."""
    from coexec.cli.output import print_json
    from coexec.cli.planned import energy_facts

    rows = [asdict(each) | {"measured_s": measured.get(each.task)} for each in reasons]
    decision = None if prepared.decision is None else prepared.decision.to_json()
    print_json({"decision": decision, "tasks": rows} | energy_facts(trace, prepared.system))


def _print_plan(prepared: "Prepared", trace: "Trace") -> None:
    """Print the decision, the planner, and the simulated time and energy."""
    from coexec.cli.console import out
    from coexec.cli.decisions import print_decision
    from coexec.cli.planned import energy_line
    from coexec.units import format_seconds

    print_decision(prepared.decision)
    planner = prepared.plan.provenance.planner
    out.print(f"plan: {planner}, predicted {format_seconds(trace.makespan_s)}")
    if (joules := energy_line(trace, prepared.system)) is not None:
        out.print(f"energy: {joules}, simulated")


def _print_reasons(reasons: Sequence["Reason"], measured: Mapping[str, float], top: int) -> None:
    """Print the groups of equal reasons, then the ``top`` longest tasks in order of their start."""
    from coexec.cli.console import out
    from coexec.cli.reasons import group_table, task_table

    out.print(group_table(reasons))
    longest = sorted(reasons, key=lambda reason: -reason.predicted_s)[:top]
    out.print(task_table([each for each in reasons if each in longest], measured))
    if len(reasons) > len(longest):
        out.print(f"the {top} longest of {len(reasons)} tasks; --all lists every one, --top N more")
