"""`coexec cluster bench`: race of a pipeline with one machine alone and with other schemes."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from coexec.cli.cluster.options import (
    DEADLINE_S,
    PLANNER,
    AddressOpt,
    ClusterOpt,
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
    SettingOptions,
    takes,
)
from coexec.cli.verbs import prints

_WARM_UP = 8
"""Number of frames before turns are timed."""


@prints(
    model="Name of the graph.",
    rows="By scheme: period_s, latency_s, ratio of periods and what was predicted.",
    left_out="By scheme that could not run, the reason.",
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
    frames: Annotated[int, typer.Option(min=1, help="Frames of a turn.")] = 24,
    turns: Annotated[int, typer.Option(min=1, help="Of the pipeline and of each rival.")] = 3,
    planner: PipelineOpt = PLANNER,
    deadline: DeadlineOpt = DEADLINE_S,
    check: CheckOpt = False,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Compare a pipeline with the best machine alone and with the schemes PICO is compared with.

    Machines are measured once, and plans stay as they are. The pipeline takes turns with each
    rival, so that a noisy machine disturbs both alike; ratios are of turns beside each other.
    """
    from coexec.cli.cluster.bench_rows import BenchRow, lasting, print_bench, rivals
    from coexec.cli.cluster.common import checked_model, entered
    from coexec.cli.cluster.frames import Answers, feed, given_frames
    from coexec.cli.console import err, out
    from coexec.cli.output import print_json
    from coexec.errors import PlanError
    from coexec.pipeline.cluster.settings import ClusterSettings, read_settings

    config = options.settings()
    cluster_settings = ClusterSettings() if cluster is None else read_settings(cluster)
    user_model = checked_model(model, config, planner, None, deadline)
    graph = user_model.model.graph
    coming = given_frames(graph, None, frames, frames)
    warm_up = replace(coming, count=_WARM_UP)
    answers = Answers(user_model, coming, check, keep=False)
    how: dict[str, Any] = {"shapes": config.shapes, "values": config.values, "deadline_s": deadline}
    left_out: dict[str, str] = {}
    with (
        entered(cluster_settings, address, nodes, token_file, options.cache) as joined,
        joined.session(
            model,
            planner=planner,
            planner_options=config.planner_options,
            settings=lasting(joined.settings),
            **how,
        ) as session,
    ):
        feed(session, warm_up, None, answers.take)
        pipeline_row = BenchRow(planner)
        rows = [pipeline_row]
        for name, rival, chosen in rivals(joined, session, planner):
            if not json:
                err.print(f"coexec: {pipeline_row.name} beside {name}", soft_wrap=True)
            try:
                beside = joined.session(model, planner=rival, settings=chosen, **how)
            except PlanError as error:
                left_out[name] = str(error)
                continue
            row = BenchRow(name)
            with beside:
                feed(beside, warm_up, None, answers.take)
                for _ in range(turns):
                    pipeline_row.note(feed(session, coming, None, answers.take))
                    row.note(feed(beside, coming, None, answers.take), pipeline_row)
                row.told(beside)
            rows.append(row)
        if len(rows) == 1:
            pipeline_row.note(feed(session, coming, None, answers.take))
        pipeline_row.told(session)
    if json:
        facts = {
            "model": graph.name,
            "rows": [row.facts() for row in rows],
            "left_out": left_out,
            "differences": answers.differences,
        }
        answers.judged(facts)
        print_json(facts)
        return
    print_bench(graph.name, rows, coming)
    for name, reason in left_out.items():
        out.print(f"left out: {name}: {reason}")
    if check:
        out.print(f"check: {answers.judged()}")
