"""`coexec report`: one page about a model, its plan and its runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coexec.cli.options import (
    PLANNED,
    ModelOrExportArg,
    PlatformOpt,
    SettingOptions,
    default_report,
    verb,
)
from coexec.cli.verbs import VerbOutput

if TYPE_CHECKING:
    from coexec.report.ways import Way

ReportOpt = Annotated[
    Path | None,
    typer.Option("--output", help="Where to write the page; by default MODEL.report.html."),
]
PlannersOpt = Annotated[
    float,
    typer.Option(
        "--planners-s", help="Seconds for the plans of all planners, and without a device; 0: none."
    ),
]


@dataclass(frozen=True)
class Report:
    """A page that was written."""

    report: str
    """The file."""
    answer: Sequence[str]
    """Sentences: the choice, its gain, the reason, the bottleneck, and what would help."""
    doubt: str | None
    """Why the choice of auto is not certain; null: it is, or auto did not choose."""
    rivals: "Sequence[Way]"
    """Ways to run the model: name, status and reason of auto, paced_s and loop_s: medians in
    seconds, share of ONNX Runtime's time; null: it was not measured."""


@verb(Report, *PLANNED, "waiting")
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    output: ReportOpt = None,
    platform: PlatformOpt = None,
    repeats: Annotated[
        int, typer.Option(help="Rounds of the race, if auto has raced nothing; 0: nothing runs.")
    ] = 10,
    planners_s: PlannersOpt = 20.0,
) -> VerbOutput:
    """Write one HTML page about a model, which works offline: what was chosen and why, all ways to
    run the model side by side, the schedule as simulated and as measured, the graph, all planners,
    and every task with its time on every device.

    If a step fails, the page shows what the steps before have found.
    """
    from coexec.cli.output import check_files, write_file
    from coexec.cli.planned import prepared_on
    from coexec.cli.progress import announce, progress
    from coexec.errors import UsageError
    from coexec.exports.opening import resolve_export
    from coexec.report.gather import ReportFailure, gather
    from coexec.report.html import page_of

    if repeats < 0:
        raise UsageError(f"--repeats {repeats}: 0 rounds or more")
    if not planners_s >= 0:  # NaN, too
        raise UsageError(f"--planners-s {planners_s:g}: 0 seconds or more")
    file = output or default_report(model)
    check_files(file)
    with progress(f"loading {model}") as tell:
        source, config = resolve_export(model, options.settings(progress=tell))
        prepared = prepared_on(platform, source, config)
        processor = "" if platform is None else f"{platform}, simulated"
        try:
            contents = gather(prepared, model, repeats, tell, planners_s, processor)
        except ReportFailure as incomplete:
            write_file(file, page_of(incomplete.contents))
            announce(f"{file} shows what was found until then")
            raise incomplete.error from None
    write_file(file, page_of(contents))
    doubt = [] if contents.doubt is None else [f"in doubt: {contents.doubt}"]
    lines = [*contents.answer, *doubt, f"report: {file}, open it in a browser"]
    return VerbOutput(Report(str(file), contents.answer, contents.doubt, contents.rivals), lines)
