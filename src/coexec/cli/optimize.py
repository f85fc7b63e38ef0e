"""`coexec optimize`: the fastest way found within a time, and whether it is worth it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coexec.cli.options import (
    CHOOSING,
    DebugOpt,
    JsonOpt,
    ModelArg,
    SettingOptions,
    default_plan,
    takes,
)
from coexec.cli.verbs import prints

if TYPE_CHECKING:
    from coexec.selection.optimize import Verdict

TimeOpt = Annotated[float, typer.Option("--time", help="Seconds for all of it.")]
PlanFileOpt = Annotated[
    Path | None,
    typer.Option("--output", help="A file for the plan; by default MODEL.plan.json."),
]


@prints(
    verdict="A sentence.",
    is_faster="Whether the plan is clearly faster than ONNX Runtime's own session.",
    ratio="ONNX Runtime's time over the plan's, or over that of the fastest other candidate if no "
    "plan is kept; null: none ran.",
    onnx_runtime_s="Median seconds of a request, in the same rounds.",
    plan_s="The same with that plan.",
    requests="The figure that these are: paced or loop.",
    devices="Devices of that plan, also if it is not kept.",
    refused="A candidate that was faster and may not answer, with the reason; null: none.",
    is_earlier="Whether the choice is of an earlier call, and nothing was measured.",
    untried="Configurations for which there was no time.",
    others="Share of the processors' time that other programs used.",
    doubt="What the next call goes on with; null: nothing.",
    unfinished="The step in which the time was over; null: none.",
    peak_bytes="Largest memory of the process that chose and raced; null: not known.",
    plan="The file of the plan; null: none was kept.",
)
@takes(*CHOOSING)
def command(
    model: ModelArg,
    options: SettingOptions,
    time: TimeOpt = 30.0,
    output: PlanFileOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Find the fastest way to run a model within --time seconds, and say whether it is worth it.

    The plan is kept where it is clearly faster than ONNX Runtime's own session; then a line says
    how to use it. The candidates that were tried follow.
    """
    from coexec.cli.console import out
    from coexec.cli.decisions import print_candidates
    from coexec.cli.output import check_plan_file, print_json, write_file
    from coexec.cli.progress import progress
    from coexec.selection.optimize import optimize
    from coexec.units import format_bytes

    file = output or default_plan(model)
    check_plan_file(file, model)
    with progress(f"loading {model}") as tell:
        config = options.settings()
        verdict = optimize(model, config, time, tell)
    kept = verdict.plan_file if verdict.is_faster else None
    replaced = kept is not None and file.exists()
    if kept is not None:
        write_file(file, kept)
    if json:
        print_json(_facts(verdict) | {"plan": None if kept is None else str(file)})
        return
    out.print(f"verdict    {verdict}")
    if verdict.doubt is not None:
        out.print(f"in doubt   {verdict.doubt}; the next call goes on from here")
    if verdict.peak_bytes is not None:
        out.print(f"memory     up to {format_bytes(verdict.peak_bytes)} to choose and race")
    if kept is not None:
        out.print(f"plan       {file}{', in place of an earlier one' if replaced else ''}")
        out.print(f"use it     session = coexec.InferenceSession({model!r}, plan={str(file)!r})")
    elif file.exists():
        out.print(f"plan       {file} is of an earlier call, and stays as it is")
    else:
        out.print("plan       none was written: a program needs none to keep ONNX Runtime")
    if verdict.decision is not None:
        when = ", of an earlier call; --fresh chooses anew" if verdict.is_earlier else ""
        out.print(f"\nThe candidates{when}:")
        print_candidates(verdict.decision, "first")


def _facts(verdict: "Verdict") -> dict[str, Any]:
    plan = verdict.plan
    return {
        "verdict": str(verdict),
        "is_faster": verdict.is_faster,
        "ratio": verdict.ratio,
        "onnx_runtime_s": None if plan is None else plan.reference_s,
        "plan_s": None if plan is None else plan.measured_s,
        "requests": None if plan is None else plan.requests,
        "devices": None if plan is None else plan.devices,
        "refused": verdict.refused,
        "is_earlier": verdict.is_earlier,
        "untried": verdict.untried,
        "others": max(verdict.others, 0.0 if verdict.decision is None else verdict.decision.others),
        "doubt": verdict.doubt,
        "unfinished": verdict.unfinished,
        "peak_bytes": verdict.peak_bytes,
    }
