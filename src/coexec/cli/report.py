"""`coexec report`: one page about a model, its plan and its runs."""

from pathlib import Path
from typing import Annotated

import typer

from coexec.cli.options import (
    PLANNED,
    DebugOpt,
    JsonOpt,
    ModelOrExportArg,
    PlatformOpt,
    SettingOptions,
    default_report,
    takes,
)
from coexec.cli.verbs import prints

ReportOpt = Annotated[
    Path | None,
    typer.Option("--output", help="Where to write the page; by default MODEL.report.html."),
]
PlannersOpt = Annotated[
    float, typer.Option("--planners-s", help="Seconds for the plans of all planners; 0: none.")
]


@prints(
    report="The file.",
    answer="Sentences: what was chosen, what it gains, and why.",
    rivals="Ways to run the model, with medians in seconds; empty: nothing was measured.",
    failure="Why the report is not complete; null: it is.",
)
@takes(*PLANNED, "waiting")
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    output: ReportOpt = None,
    platform: PlatformOpt = None,
    repeats: Annotated[int, typer.Option(help="Rounds of the race; 0: no race.")] = 10,
    planners_s: PlannersOpt = 20.0,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Write one HTML page about a model, which works offline: what was chosen and why, all ways to
    run the model side by side, the schedule as simulated and as measured, the graph, all planners,
    and every task with its time on every device.

    If a step fails, the page shows what the steps before have found.
    """
    from coexec.cli.console import out
    from coexec.cli.output import check_files, print_json, write_file
    from coexec.cli.planned import prepared_on
    from coexec.cli.progress import announce, progress
    from coexec.errors import UsageError
    from coexec.exports.opening import resolve_export
    from coexec.report.gather import ReportFailure, gather
    from coexec.report.html import page_of

    if repeats < 0:
        raise UsageError(f"--repeats {repeats}: 0 rounds or more")
    if planners_s < 0:
        raise UsageError(f"--planners-s {planners_s:g}: 0 seconds or more")
    file = output or default_report(model)
    check_files(file)
    failure = None
    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        source, config = resolve_export(model, config)
        prepared = prepared_on(platform, source, config)
        shown_platform = "" if platform is None else f"{platform}, simulated"
        try:
            contents = gather(prepared, model, repeats, tell, planners_s, shown_platform)
        except ReportFailure as found:
            contents, failure = found.contents, found.error
    write_file(file, page_of(contents))
    if failure is not None:
        announce(f"{file} shows what was found until then")
        raise failure
    if json:
        rivals = [{"name": row.name, "paced_s": row.paced_s, "loop_s": row.loop_s}
                  for row in contents.rivals]  # fmt: skip
        print_json(
            {
                "report": str(file),
                "answer": contents.answer,
                "rivals": rivals,
                "failure": contents.failure,
            }
        )
        return
    for sentence in contents.answer:
        out.print(sentence)
    out.print(f"report: {file}, open it in a browser")
