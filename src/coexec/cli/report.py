"""`coexec report`: one page about a model, its plan and its runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from coexec.errors import CoexecError
    from coexec.report.contents import Contents

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


@prints(
    report="The file.",
    answer="Sentences: what was chosen, what it gains, why, what bounds it, and what would help.",
    doubt="Why the choice of auto is not certain; null: it is, or auto did not choose.",
    rivals="Ways to run the model: name, status and reason of auto, paced_s and loop_s: medians in "
    "seconds, share of ONNX Runtime's time; null: it was not measured.",
)
@takes(*PLANNED, "waiting")
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    output: ReportOpt = None,
    platform: PlatformOpt = None,
    repeats: Annotated[
        int, typer.Option(help="Rounds of the race, if auto has raced nothing; 0: nothing runs.")
    ] = 10,
    planners_s: PlannersOpt = 20.0,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Write one HTML page about a model, which works offline: what was chosen and why, all ways to
    run the model side by side, the schedule as simulated and as measured, the graph, all planners,
    and every task with its time on every device.

    If a step fails, the page shows what the steps before have found.
    """
    from coexec.cli.output import check_files, write_file
    from coexec.cli.progress import announce
    from coexec.report.html import page_of

    _check(repeats, planners_s)
    file = output or default_report(model)
    check_files(file)
    contents, failure = _contents(model, options, platform, repeats, planners_s)
    write_file(file, page_of(contents))
    if failure is not None:
        announce(f"{file} shows what was found until then")
        raise failure
    _print(contents, file, json)


def _check(repeats: int, planners_s: float) -> None:
    """Refuse numbers without a meaning."""
    from coexec.errors import UsageError

    if repeats < 0:
        raise UsageError(f"--repeats {repeats}: 0 rounds or more")
    if not planners_s >= 0:  # NaN, too
        raise UsageError(f"--planners-s {planners_s:g}: 0 seconds or more")


def _contents(
    model: str,
    options: SettingOptions,
    platform: str | None,
    repeats: int,
    planners_s: float,
) -> "tuple[Contents, CoexecError | None]":
    """The contents of the page, and the failure that ended them early, if there was one."""
    from coexec.cli.planned import prepared_on
    from coexec.cli.progress import progress
    from coexec.exports.opening import resolve_export
    from coexec.report.gather import ReportFailure, gather

    with progress(f"loading {model}") as tell:
        source, config = resolve_export(model, options.settings(progress=tell))
        prepared = prepared_on(platform, source, config)
        processor = "" if platform is None else f"{platform}, simulated"
        try:
            return gather(prepared, model, repeats, tell, planners_s, processor), None
        except ReportFailure as incomplete:
            return incomplete.contents, incomplete.error


def _print(contents: "Contents", file: Path, json: bool) -> None:
    """Print the answer as sentences, or with the rivals as a JSON document."""
    from coexec.cli.console import out
    from coexec.cli.output import print_json

    if json:
        fields = ("name", "status", "reason", "paced_s", "loop_s", "share")
        rivals = [{name: getattr(row, name) for name in fields} for row in contents.rivals]
        answer = {"answer": contents.answer, "doubt": contents.doubt}
        print_json({"report": str(file), **answer, "rivals": rivals})
        return
    for sentence in contents.answer:
        out.print(sentence)
    if contents.doubt is not None:
        out.print(f"in doubt: {contents.doubt}")
    out.print(f"report: {file}, open it in a browser")
