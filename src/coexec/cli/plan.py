"""`coexec plan`: make a plan, and predict its time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from coexec.cli.options import PLANNING, ModelArg, PlatformOpt, SettingOptions, verb
from coexec.cli.verbs import Energy, VerbOutput

PlanFileOpt = Annotated[Path | None, typer.Option("--output", help="A file for the plan.")]


@dataclass(frozen=True)
class PlanPrediction(Energy):
    """A plan file, and what the plan takes."""

    format: int
    """Version of the plan file."""
    model: str
    """Fingerprint of the model."""
    provenance: Mapping[str, Any]
    """Planner, its options, status and bound."""
    order: Mapping[str, Sequence[Any]]
    """By place, the pieces in order."""
    predicted_s: float
    """Seconds of one inference, simulated."""
    segments: int
    """Number of segments."""
    bound_devices: Sequence[str] | None
    """Devices that the bound holds for; null: there is none."""
    programs: Mapping[str, Sequence[Mapping[str, Any]]] | None
    """With --programs: by device, its steps in order: wait, copy, run, signal."""
    as_given: bool = False
    """Whether one engine runs the model as it was given."""


@verb(PlanPrediction, *PLANNING)
def command(
    model: ModelArg,
    options: SettingOptions,
    platform: PlatformOpt = None,
    output: PlanFileOpt = None,
    programs: Annotated[
        bool, typer.Option("--programs", help="Print the steps of each device.")
    ] = False,
) -> VerbOutput:
    """Plan a model and print the prediction; --output keeps the plan for coexec run --plan.

    --programs prints the steps of each device: it waits for segments of other devices, copies the
    tensors that come from them, runs a segment, and signals its end where a device waits for it.
    """
    import json
    from itertools import chain

    from coexec.cli.console import labelled
    from coexec.cli.decisions import decision_lines
    from coexec.cli.output import check_plan_file, write_file
    from coexec.cli.planned import energy_of, loaded
    from coexec.plan.program import device_programs, step_facts, text, verify_programs
    from coexec.report.bound import alone_s, bound_of
    from coexec.selection.plan_files import text_of
    from coexec.timing.simulate import simulate
    from coexec.units import format_seconds

    check_plan_file(output, model)
    prepared = loaded(model, options, platform)
    plan, schedule, system = prepared.plan, prepared.schedule, prepared.system
    trace = simulate(schedule, prepared.cost, system)
    steps = device_programs(schedule.segments, schedule.transfers)
    verify_programs(steps, schedule)
    if output is not None:
        write_file(output, text_of(plan, prepared.graph, prepared.origin.shapes))
    bound = bound_of(prepared)
    result = PlanPrediction(
        **json.loads(plan.to_json()),
        predicted_s=trace.makespan_s,
        segments=len(schedule.segments),
        bound_devices=None if bound is None else bound.devices,
        programs=step_facts(steps, schedule) if programs else None,
        **energy_of(trace, system),
    )
    moved_bytes = sum(transfer.size_bytes for transfer in schedule.transfers)
    lines = {
        "platform": None if platform is None else f"{platform}, simulated",
        "planner": f"{plan.provenance.planner}, {plan.provenance.status}",
        "predicted": f"{format_seconds(trace.makespan_s)} (simulated)",
        "energy": result.energy,
        "bound": None if bound is None else str(bound),
    }
    for name in system.names:
        sharers = [place for place in system.places if place.device == name]
        alone = [
            format_seconds(alone_s(prepared, place))
            + (f" with {place.engine}" if len(sharers) > 1 else "")
            for place in sharers
        ]
        lines[name] = (
            f"{len(plan.order.get(name, ()))} of {len(prepared.graph.tasks)} tasks, busy "
            f"{trace.utilisation(name):.0%}; all tasks alone {', '.join(alone)}"
        )
    lines |= {
        "segments": f"{len(schedule.segments)}, {len(schedule.transfers)} tensors "
        f"({moved_bytes / 1e6:.1f} MB) read across devices",
        "written": None if output is None else str(output),
    }
    listed = [f"\n{text(steps, schedule)}"] if programs else []
    return VerbOutput(result, chain(decision_lines(prepared.decision), labelled(lines), listed))
