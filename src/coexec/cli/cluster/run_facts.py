"""Output of `coexec cluster run`."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from coexec.cli.cluster.answers import Answers
from coexec.cli.cluster.frames import Answered, Frames
from coexec.cli.console import out
from coexec.pipeline.cluster.session import ClusterSession
from coexec.units import format_bytes, format_numbers, format_seconds

__all__ = ["print_run", "run_facts"]


def run_facts(
    session: "ClusterSession", frames: "Frames", answered: "Answered", answers: Answers
) -> dict[str, Any]:
    """Facts of a run for the JSON document."""
    status, plan = session.status(), session.plan
    machines = {
        each.name: {
            "host": each.host,
            "stages": each.stages,
            "shares": each.computed,
            "busy_s": each.busy_s,
            "flops_per_s": each.flops_per_s,
            "bandwidth_bytes_per_s": each.bandwidth_bytes_per_s,
            "sent_bytes": each.sent_bytes,
            "received_bytes": each.received_bytes,
        }
        for each in status.machines
    }
    return {
        "frames": frames.count,
        "seconds": max(answered.at_s),
        "period_s": answered.period_s,
        "predicted_period_s": status.predicted_period_s,
        "latency_s": answered.latency_s,
        "latency_p95_s": answered.late_s,
        "predicted_latency_s": status.predicted_latency_s,
        "credits": status.credits,
        "most_inside": status.most_inside,
        "planner": plan.provenance.planner,
        "stages": len(plan.stages),
        "notes": plan.notes,
        "machines": machines,
        "changes": status.changes,
        "differences": answers.differences,
    }


def print_run(name: str, facts: Mapping[str, Any]) -> None:
    """Print the facts of a run as text and a table."""
    count, seconds = facts["frames"], facts["seconds"]
    used = [machine for machine, row in facts["machines"].items() if row["stages"]]
    out.print(f"{name} by {facts['planner']}, {facts['stages']} stages on {', '.join(used)}")
    for note in facts["notes"]:
        out.print(f"note       {note}")
    out.print(
        f"frames     {count} answered in {format_seconds(seconds)}, at most "
        f"{facts['most_inside']} inside of {facts['credits']} credits"
    )
    out.print(
        f"period     {format_seconds(facts['period_s'])}, predicted "
        f"{format_seconds(facts['predicted_period_s'])}"
    )
    out.print(
        f"latency    {format_seconds(facts['latency_s'])} median, "
        f"{format_seconds(facts['latency_p95_s'])} of 95 %; of a frame that is alone "
        f"{format_seconds(facts['predicted_latency_s'])} predicted"
    )
    for line in facts["changes"][1:]:
        out.print(f"changed    {line}")
    table = Table("machine", "host", "stages", "shares", "busy", "in", "out", box=None)
    for machine, row in facts["machines"].items():
        busy = min(1.0, row["busy_s"] / seconds)
        table.add_row(
            machine,
            row["host"],
            format_numbers(row["stages"], ", ") or "none",
            str(row["shares"]),
            f"{busy:.0%}",
            format_bytes(row["received_bytes"]),
            format_bytes(row["sent_bytes"]),
        )
    out.print(table)
