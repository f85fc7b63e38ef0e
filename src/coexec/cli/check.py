"""`coexec check`: compare a plan with ONNX Runtime, and find the task that is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from coexec.cli.options import PLANNED, ModelOrExportArg, SettingOptions, verb
from coexec.cli.verbs import VerbOutput
from coexec.model.probe_names import ProbeName


@dataclass(frozen=True)
class CheckResult:
    """A plan or its tasks, compared with ONNX Runtime."""

    differences: Mapping[str, float] | None = None
    """By output, the largest difference from ONNX Runtime, relative to the largest value; not with
    --tasks."""
    counts: Mapping[str, int] | None = None
    """With --tasks: number of tasks by verdict: equal, differs, failed, refused, skipped."""
    tasks: Sequence[Mapping[str, Any]] | None = None
    """With --tasks: by task and place, the verdict, the reason and the difference."""
    segments: Sequence[Mapping[str, Any]] | None = None
    """With --tasks and a plan none of whose tasks differs: the same by segment of several tasks, in
    which an engine may fuse tasks."""
    first: Mapping[str, Any] | None = None
    """With --tasks: the first task that differs, with its facts; null: none does."""


@verb(CheckResult, *PLANNED)
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Compare every task by itself, on the same inputs.")
    ] = False,
    probe: Annotated[
        ProbeName | None,
        typer.Option(
            help="Other float values in the inputs, one of the sets with which a plan is compared "
            "before it answers."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="With --tasks: list every task.")] = False,
) -> VerbOutput:
    """Compare the outputs of a plan with ONNX Runtime's for the same inputs: random ones, or those
    of --inputs, or, with --probe, the same with other float values. Exit code 1 if they differ.

    --tasks compares every task on each device of --devices, or, with --plan or --planner or without
    --devices, every piece of the plan. Both sides get ONNX Runtime's tensors, so that the first
    task that differs is wrong itself. If no piece of a plan differs, its segments are compared in
    the same way: an engine may fuse their tasks.
    """
    from coexec.cli import task_comparison
    from coexec.cli.checks import accepted, check_outputs
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.exports.opening import resolve_export
    from coexec.selection.prepare import prepare

    if every and not tasks:
        raise UsageError("--all lists the tasks that --tasks compares; add --tasks")
    with progress(f"loading {model}") as tell:
        source, config = resolve_export(model, options.settings(progress=tell))
        if tasks:
            compared = task_comparison.compare(source, config, tell, probe)
            return VerbOutput(
                CheckResult(**compared.facts()), compared.text(every), compared.error()
            )
        prepared = prepare(source, config)
        work = prepared.work
        feeds, _ = accepted(work.user_model, probe)
        tell("running the plan", 0, 0)
        with work.start(prepared) as executor:
            outputs = executor.run(feeds)
        checked = check_outputs(work, feeds, outputs)
    note = " (the model as it was given, in the engine's own session)"
    lines = [f"{name} differs by {d:.1e}" for name, d in checked.differences.items()]
    lines.append(f"{checked.verdict}{note if prepared.plan.as_given else ''}")
    text = [] if checked.error is not None else lines
    return VerbOutput(CheckResult(checked.differences), text, checked.error)
