"""`coexec explain`: why tasks are on their devices, in groups and one by one."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

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
    node_data: Annotated[
        Path | None, typer.Option(help="A folder for node data of Model Explorer.")
    ] = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Say what auto considered, with the reason for each candidate; and why tasks are where they
    are: how much later the result of each, moved alone, would be where it is read. Groups of equal
    reasons first, then the longest tasks, or --all. Measured times are of tasks one after the
    other; with --platform nothing can run, and there are none.

    --node-data writes files that Model Explorer shows on the model: the place of each node, its
    predicted and its measured time.
    """
    from coexec.cli.console import out
    from coexec.cli.decisions import print_decision
    from coexec.cli.output import print_json, write_node_data
    from coexec.cli.planned import energy_facts, energy_line, prepared_on
    from coexec.cli.progress import progress
    from coexec.cli.reasons import group_table, task_table
    from coexec.errors import UsageError
    from coexec.report.in_place import measured_in_place
    from coexec.timing.explain import explain
    from coexec.timing.simulate import simulate
    from coexec.units import format_seconds

    if top < 1:
        raise UsageError(f"--top {top}: list 1 task or more")
    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        prepared = prepared_on(platform, model, config)
        cost, system = prepared.cost, prepared.system
    chosen, schedule = prepared.plan, prepared.schedule
    pinned = prepared.work.pinned_tasks(cost, system) if platform is None else ()
    reasons = explain(chosen, schedule, cost, system, pinned)
    measured = measured_in_place(prepared) if platform is None else {}
    trace = simulate(schedule, cost, system)
    if node_data is not None:
        write_node_data(node_data, model, prepared, measured)
    if json:
        rows = [asdict(r) | {"measured_s": measured.get(r.task)} for r in reasons]
        decision = None if prepared.decision is None else prepared.decision.to_json()
        print_json({"decision": decision, "tasks": rows} | energy_facts(trace, system))
        return
    print_decision(prepared.decision)
    out.print(f"plan: {chosen.provenance.planner}, predicted {format_seconds(trace.makespan_s)}")
    if (joules := energy_line(trace, system)) is not None:
        out.print(f"energy: {joules}, simulated")
    out.print(group_table(reasons))
    shown = reasons if every else sorted(reasons, key=lambda r: -r.predicted_s)[:top]
    out.print(task_table([r for r in reasons if r in shown], measured))
    if len(reasons) > len(shown):
        out.print(f"the {top} longest of {len(reasons)} tasks; --all lists every one, --top N more")
    if node_data is not None:
        out.print(f"written    {node_data}")
