"""Output of `coexec cluster plan`: a pipeline plan as text and tables."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from coexec.cli.console import out
from coexec.costs.capacity import FLOPS_PER_MAC
from coexec.graph.graph import Graph
from coexec.graph.region import Region
from coexec.pipeline.cluster.planning import KnownMachine, Planned
from coexec.pipeline.plan.memory import machine_memory
from coexec.pipeline.plan.plan import PipelinePlan, Share, Stage
from coexec.pipeline.plan.work import redundancy, stage_work
from coexec.units import format_bytes, format_count, format_numbers, format_seconds


def plan_facts(planned: Planned, graph: Graph, machines: Sequence[KnownMachine]) -> dict[str, Any]:
    """The plan and its figures for the JSON document."""
    plan = planned.plan
    memory_by_machine = machine_memory(graph, plan)
    rows: dict[str, Any] = {}
    for machine in machines:
        memory = memory_by_machine.get(machine.name)
        rows[machine.name] = {
            "flops_per_s": machine.capacity.flops_per_s / machine.capacity.alpha,
            "bandwidth_bytes_per_s": machine.bandwidth_bytes_per_s,
            "stages": plan.stages_of(machine.name),
            "utilisation": planned.utilisation.get(machine.name, 0.0),
            "weight_bytes": memory.weight_bytes if memory else 0,
            "feature_bytes": memory.feature_bytes if memory else 0,
        }
    return {
        "period_s": planned.period_s,
        "latency_s": planned.latency_s,
        "credits": planned.credits,
        "redundancy": redundancy(graph, plan),
        "machines": rows,
        "plan": json.loads(plan.to_json()),
    }


def show_plan(planned: Planned, graph: Graph, facts: Mapping[str, Any]) -> None:
    """Print the plan and its figures as text and tables."""
    plan = planned.plan
    out.print(f"planner    {plan.provenance.planner}, {plan.provenance.status}")
    rate = f", {1 / planned.period_s:.1f} frames a second" if planned.period_s else ""
    out.print(f"period     {format_seconds(planned.period_s)} predicted{rate}")
    out.print(f"latency    {format_seconds(planned.latency_s)} of a frame that is alone")
    out.print(f"redundant  {facts['redundancy']:.1%} of what is computed")
    for note in plan.notes:
        out.print(f"note       {note}")
    out.print(_stages(plan, graph))
    table = Table(
        "machine", "GFLOP/s", "Mbit/s", "stages", "computes", "weights", "feature maps", box=None
    )
    for name, row in facts["machines"].items():
        cells = [f"{row['flops_per_s'] / 1e9:.3g}", f"{row['bandwidth_bytes_per_s'] * 8e-6:.3g}"]
        if row["stages"]:
            cells += [
                format_numbers(row["stages"], ", "),
                f"{row['utilisation']:.0%} of the time",
                format_bytes(row["weight_bytes"]),
                format_bytes(row["feature_bytes"]),
            ]
        else:
            cells.append("none: the others are faster without it")
        table.add_row(name, *cells)
    out.print(table)


def _stages(plan: PipelinePlan, graph: Graph) -> Table:
    table = Table("stage", "tasks", "first", "last", "GFLOP", "redundant", "machines", box=None)
    for index, stage in enumerate(plan.stages):
        works = stage_work(graph, stage)
        total = sum(work.strip.macs for work in works)
        twice = float(sum(work.redundant_macs for work in works) / total) if total else 0.0
        table.add_row(
            str(index),
            str(len(stage.tasks)),
            stage.tasks[0],
            stage.tasks[-1],
            format_count(FLOPS_PER_MAC * total),
            f"{twice:.1%}",
            _shares(stage, graph),
        )
    return table


def _shares(stage: Stage, graph: Graph) -> str:
    return "; ".join(f"{share.machine} {_part(share, graph)}" for share in stage.shares)


def _part(share: Share, graph: Graph) -> str:
    """The part of a stage's first output that a machine computes: "rows 0-27", "all"."""
    name, region = share.outputs[0]
    whole: Region = graph.tensors[name].whole
    cut: Mapping[int, str] = {
        axis: f"{region.start[axis]}-{region.stop[axis] - 1}"
        for axis in range(len(whole.start))
        if (region.start[axis], region.stop[axis]) != (whole.start[axis], whole.stop[axis])
    }
    if not cut:
        return "all"
    names = {2: "rows", 3: "columns"} if len(whole.start) == 4 else {}
    return " ".join(f"{names.get(axis, f'axis {axis}')} {text}" for axis, text in cut.items())
