"""`coexec cluster run`: frames through a pipeline, checked if wanted."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coexec.cli.cluster.answers import Answers
from coexec.cli.cluster.common import (
    AddressOpt,
    ClusterOpt,
    CreditsOpt,
    DeadlineOpt,
    NodesOpt,
    PipelineOpt,
    TokenOpt,
    checked_model,
    entered,
)
from coexec.cli.cluster.planned import format_stages
from coexec.cli.common import (
    CacheOpt,
    DebugOpt,
    JsonOpt,
    ModelArg,
    OptionOpt,
    ShapeOpt,
    TraceOpt,
    ValueOpt,
    check_files,
    print_json,
    settings,
    write_file,
)
from coexec.cli.console import out
from coexec.errors import UsageError
from coexec.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from coexec.cli.cluster.frames import Answered, Frames
    from coexec.cluster.session import ClusterSession

_FRAMES = 50


def command(
    model: ModelArg,
    cluster: ClusterOpt = None,
    address: AddressOpt = None,
    nodes: NodesOpt = None,
    token_file: TokenOpt = None,
    frames: Annotated[
        int | None, typer.Option(help=f"Frames to send: {_FRAMES}, or as many as --inputs has.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Frames a second; by default as credits allow.")
    ] = None,
    planner: PipelineOpt = "pico",
    option: OptionOpt = None,
    credits: CreditsOpt = None,
    deadline: DeadlineOpt = 60.0,
    inputs: Path | None = None,
    output: Path | None = None,
    check: bool = False,
    trace: TraceOpt = None,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Send frames through a pipeline, and show how its machines do meanwhile.

    --inputs names an .npz file: an array for each input, or one with an axis of frames in front;
    without it, random numbers are used. --output writes what was answered, with an axis of frames
    in front. --check compares each answer with ONNX Runtime's on the model as it was given.
    --trace writes what all machines did when, on one clock.
    """
    from coexec.cli.cluster.frames import feed, given_frames
    from coexec.cli.cluster.view import watched
    from coexec.cluster.settings import ClusterSettings, read_settings

    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: frames a second are above 0")
    check_files(trace, output)
    asked = settings(option=option, shape=shape, value=value, cache=cache)
    known = ClusterSettings() if cluster is None else read_settings(cluster)
    given = checked_model(model, asked, planner, credits, deadline)
    coming = given_frames(given.model.graph, inputs, frames, _FRAMES)
    answers = Answers(given, coming, check, output is not None)
    with (
        entered(known, address, nodes, token_file, cache) as joined,
        joined.session(
            model, planner=planner, planner_options=asked.planner_options, shapes=asked.shapes,
            values=asked.values, credits=credits, deadline_s=deadline,
        ) as session,
    ):  # fmt: skip
        if trace is not None:
            session.start_trace()
        with watched(session, coming.count, json):
            answered = feed(session, coming, rate, answers.take)
        if trace is not None:
            write_file(trace, session.stop_trace().to_chrome())
        facts = _facts(session, coming, answered, answers)
    if output is not None:
        write_file(output, answers.packed())
    if json:
        print_json(facts)
    else:
        _show(given.model.graph.name, facts)
        if trace is not None:
            out.print(f"trace      {trace}, open it at ui.perfetto.dev")
    said = answers.judged()
    if check and not json:
        out.print(f"check      {said}")


def _facts(
    session: "ClusterSession", frames: "Frames", answered: "Answered", answers: Answers
) -> dict[str, Any]:
    status, plan = session.status(), session.plan
    machines = {
        each.name: {"host": each.host, "stages": each.stages, "shares": each.computed,
                    "busy_s": each.busy_s, "flops_per_s": each.flops_per_s,
                    "bandwidth_bytes_per_s": each.bandwidth_bytes_per_s,
                    "sent_bytes": each.sent_bytes, "received_bytes": each.received_bytes}
        for each in status.machines
    }  # fmt: skip
    return {
        "frames": frames.count, "seconds": max(answered.at_s), "period_s": answered.period_s,
        "predicted_period_s": status.predicted_period_s, "latency_s": answered.latency_s,
        "latency_p95_s": answered.late_s, "predicted_latency_s": status.predicted_latency_s,
        "credits": status.credits, "most_inside": status.most_inside,
        "planner": plan.provenance.planner, "stages": len(plan.stages), "notes": plan.notes,
        "machines": machines, "changes": status.changes, "differences": answers.differences,
    }  # fmt: skip


def _show(name: str, facts: Mapping[str, Any]) -> None:
    """Print what came of it."""
    count, seconds = facts["frames"], facts["seconds"]
    used = [machine for machine, row in facts["machines"].items() if row["stages"]]
    out.print(f"{name} by {facts['planner']}, {facts['stages']} stages on {', '.join(used)}")
    for note in facts["notes"]:
        out.print(f"note       {note}")
    out.print(f"frames     {count} answered in {format_seconds(seconds)}, at most "
              f"{facts['most_inside']} inside of {facts['credits']} credits")  # fmt: skip
    out.print(f"period     {format_seconds(facts['period_s'])}, predicted "
              f"{format_seconds(facts['predicted_period_s'])}")  # fmt: skip
    out.print(f"latency    {format_seconds(facts['latency_s'])} median, "
              f"{format_seconds(facts['latency_p95_s'])} of 95 %; of a frame that is alone "
              f"{format_seconds(facts['predicted_latency_s'])} predicted")  # fmt: skip
    for line in facts["changes"][1:]:
        out.print(f"changed    {line}")
    table = Table("machine", "host", "stages", "shares", "busy", "in", "out", box=None)
    for machine, row in facts["machines"].items():
        busy = min(1.0, row["busy_s"] / seconds)
        table.add_row(machine, row["host"], format_stages(row["stages"]) or "none",
                      str(row["shares"]), f"{busy:.0%}", format_bytes(row["received_bytes"]),
                      format_bytes(row["sent_bytes"]))  # fmt: skip
    out.print(table)
