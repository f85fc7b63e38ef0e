"""`coexec cluster run`: send frames through a pipeline, with an optional check of the answers."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coexec.cli.cluster.options import (
    DEADLINE_S,
    PLANNER,
    AddressOpt,
    ClusterOpt,
    CreditsOpt,
    DeadlineOpt,
    NodesOpt,
    PipelineOpt,
    TokenOpt,
)
from coexec.cli.options import (
    CheckOpt,
    DebugOpt,
    JsonOpt,
    ModelArg,
    OutputOpt,
    SettingOptions,
    TraceOpt,
    takes,
)
from coexec.cli.verbs import prints

if TYPE_CHECKING:
    from coexec.cli.cluster.frames import Answered, Answers, Frames
    from coexec.pipeline.cluster.session import ClusterSession

_FRAMES = 50


@prints(
    frames="Number of frames.",
    seconds="Until the last answer.",
    period_s="Seconds from one answer to the next.",
    predicted_period_s="As predicted.",
    latency_s="Median of a frame.",
    latency_p95_s="95 % of latencies are below.",
    predicted_latency_s="Of a frame that is alone, predicted.",
    credits="Frames that may be inside.",
    most_inside="Frames that were inside.",
    planner="What made the plan.",
    stages="Number of stages.",
    notes="What the planner says.",
    machines="By machine, its stages, work and bytes.",
    changes="Plans, in order, and why they changed.",
    differences="With --check: by output, the largest difference. Else empty.",
)
@takes("planner_options", "shapes", "values", "cache")
def command(
    model: ModelArg,
    options: SettingOptions,
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
    planner: PipelineOpt = PLANNER,
    credits: CreditsOpt = None,
    deadline: DeadlineOpt = DEADLINE_S,
    inputs: Annotated[Path | None, typer.Option(help="An .npz file of frames.")] = None,
    output: OutputOpt = None,
    check: CheckOpt = False,
    trace: TraceOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Send frames through a pipeline, and show how its machines do meanwhile.

    --inputs names an .npz file: an array for each input, or one with an axis of frames in front;
    without it, random numbers are used. --output writes what was answered, with an axis of frames
    in front. --check compares each answer with ONNX Runtime's on the model as it was given.
    --trace writes what all machines did when, on one clock.
    """
    from coexec.cli.cluster.common import checked_model, entered, pipeline_session
    from coexec.cli.cluster.frames import Answers, feed, given_frames
    from coexec.cli.cluster.view import watched
    from coexec.cli.console import out
    from coexec.cli.output import check_files, print_json, write_file
    from coexec.errors import UsageError
    from coexec.pipeline.cluster.settings import ClusterSettings, read_settings

    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: frames a second are above 0")
    check_files(trace, output)
    config = options.settings()
    cluster_settings = ClusterSettings() if cluster is None else read_settings(cluster)
    user_model = checked_model(model, config, planner, credits, deadline)
    coming = given_frames(user_model.model.graph, inputs, frames, _FRAMES)
    answers = Answers(user_model, coming, check, output is not None)
    with (
        entered(cluster_settings, address, nodes, token_file, options.cache) as joined,
        pipeline_session(
            joined, model, config, planner, credits=credits, deadline_s=deadline
        ) as session,
    ):
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
        answers.judged(facts)
        print_json(facts)
        return
    _print(user_model.model.graph.name, facts)
    if trace is not None:
        out.print(f"trace      {trace}, open it at ui.perfetto.dev")
    if check:
        out.print(f"check      {answers.judged()}")


def _facts(
    session: "ClusterSession", frames: "Frames", answered: "Answered", answers: "Answers"
) -> dict[str, Any]:
    status, plan = session.status(), session.plan
    machines = {each.name: asdict(each) for each in status.machines}
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


def _print(name: str, facts: Mapping[str, Any]) -> None:
    from rich.table import Table

    from coexec.cli.console import out
    from coexec.units import format_bytes, format_numbers, format_seconds

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
