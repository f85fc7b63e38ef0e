"""`coexec plan`: make a plan, and predict its time."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from coexec.cli.options import (
    PLANNING,
    DebugOpt,
    JsonOpt,
    ModelArg,
    PlatformOpt,
    SettingOptions,
    takes,
)
from coexec.cli.verbs import ENERGY, prints

PlanFileOpt = Annotated[
    Path | None,
    typer.Option("--output", help="A file for the plan."),
]


@prints(
    format="Version of the plan file.",
    model="Fingerprint of the model.",
    as_given="Where one engine runs the model as it was given: true.",
    provenance="Planner, its options, status and bound.",
    order="By place, the pieces in order.",
    predicted_s="Seconds of one inference, simulated.",
    segments="Number of segments.",
    bound_devices="Devices that the bound holds for; null: there is none.",
    programs="With --programs: by device, its steps in order: wait, copy, run, signal.",
    **ENERGY,
)
@takes(*PLANNING)
def command(
    model: ModelArg,
    options: SettingOptions,
    platform: PlatformOpt = None,
    output: PlanFileOpt = None,
    programs: Annotated[
        bool, typer.Option("--programs", help="Print the steps of each device.")
    ] = False,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Plan a model and print the prediction; --output keeps the plan for coexec run --plan.

    --programs prints the steps of each device: it waits for segments of other devices, copies the
    tensors that come from them, runs a segment, and signals its end where a device waits for it.
    """
    from coexec.cli.console import out
    from coexec.cli.decisions import print_decision
    from coexec.cli.output import check_plan_file, print_json, write_plan
    from coexec.cli.planned import energy_facts, energy_line, prepared_on
    from coexec.cli.program_rows import program_rows
    from coexec.cli.progress import progress
    from coexec.plan.program import device_programs, text, verify_programs
    from coexec.report.bound import alone_s, bound_of
    from coexec.timing.simulate import simulate
    from coexec.units import format_seconds

    check_plan_file(output, model)
    with progress(f"loading {model}") as tell:
        settings = options.settings(progress=tell)
        prepared = prepared_on(platform, model, settings)
        trace = simulate(prepared.schedule, prepared.cost, prepared.system)
    graph, plan = prepared.graph, prepared.plan
    schedule, system = prepared.schedule, prepared.system
    steps = device_programs(schedule.segments, schedule.transfers)
    verify_programs(steps, schedule)
    if output is not None:
        write_plan(output, prepared)
    bound = bound_of(prepared)
    if json:
        facts: dict[str, Any] = {
            "predicted_s": trace.makespan_s,
            "segments": len(schedule.segments),
            "bound_devices": None if bound is None else bound.devices,
        }
        facts |= energy_facts(trace, system)
        if programs:
            facts["programs"] = program_rows(steps, schedule)
        print_json(json_module.loads(plan.to_json()) | facts)
        return
    print_decision(prepared.decision)
    if platform is not None:
        out.print(f"platform   {platform}, simulated")
    out.print(f"planner    {plan.provenance.planner}, {plan.provenance.status}")
    out.print(f"predicted  {format_seconds(trace.makespan_s)} (simulated)")
    if (joules := energy_line(trace, system)) is not None:
        out.print(f"energy     {joules}, simulated")
    if bound is not None:
        out.print(f"bound      {bound}")
    for name in system.names:
        count = len(plan.order.get(name, ()))
        alone = format_seconds(alone_s(prepared, name))
        out.print(
            f"{name:10} {count} of {len(graph.tasks)} tasks, busy "
            f"{trace.utilisation(name):.0%}; all tasks alone {alone}"
        )
    moved = sum(t.size_bytes for t in schedule.transfers)
    out.print(
        f"segments   {len(schedule.segments)}, {len(schedule.transfers)} tensors "
        f"({moved / 1e6:.1f} MB) read across devices"
    )
    if output is not None:
        out.print(f"written    {output}")
    if programs:
        out.print(f"\n{text(steps, schedule)}")
