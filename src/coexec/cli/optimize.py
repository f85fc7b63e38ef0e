"""`coexec optimize`: the fastest way found within a time, and whether it is worth it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coexec.cli.options import CHOOSING, ModelArg, SettingOptions, default_plan, verb
from coexec.cli.verbs import VerbOutput

TimeOpt = Annotated[float, typer.Option("--time", help="Seconds for all of it.")]
PlanFileOpt = Annotated[
    Path | None,
    typer.Option("--output", help="A file for the plan; by default MODEL.plan.json."),
]


@dataclass(frozen=True)
class OptimizeResult:
    """The fastest way that was found to run a model."""

    verdict: str
    """A sentence."""
    is_faster: bool
    """Whether the plan is clearly faster than ONNX Runtime's own session."""
    ratio: float | None
    """ONNX Runtime's time over the plan's, or over the time of the fastest other candidate
    if no plan is kept; null: none ran."""
    onnx_runtime_s: float | None
    """Median seconds of a request, in the same rounds."""
    plan_s: float | None
    """The same with that plan."""
    requests: str | None
    """The figure that these are: paced or loop."""
    devices: Sequence[str] | None
    """Devices of that plan, also if it is not kept."""
    refused: str | None
    """A candidate that was faster and may not answer, with the reason; null: none."""
    is_earlier: bool
    """Whether the choice is of an earlier call, and nothing was measured."""
    untried: Sequence[str]
    """Configurations for which there was no time."""
    others: float
    """Share of the processors' time that other programs used."""
    doubt: str | None
    """Open questions, with which the next call goes on; null: none."""
    unfinished: str | None
    """The step in which the time was over or the process crashed; null: none."""
    crash: str | None
    """How the process crashed; null: it did not."""
    peak_bytes: int | None
    """Largest memory of the process that chose and raced; null: not known."""
    plan: str | None
    """The file of the plan; null: none was kept."""
    precision: str | None
    """Precision of that plan with its error, or why it is not lower; null: float32, and no other
    was tried."""
    offer: str | None
    """What a lower precision would give, measured; null: nothing."""


@verb(OptimizeResult, *CHOOSING)
def command(
    model: ModelArg, options: SettingOptions, time: TimeOpt = 30.0, output: PlanFileOpt = None
) -> VerbOutput:
    """Find the fastest way to run a model within --time seconds, and say whether it is worth it.

    The plan is kept where it is clearly faster than ONNX Runtime's own session; then a line says
    how to use it. The candidates that were tried follow.
    """
    from coexec.cli.console import labelled
    from coexec.cli.decisions import candidate_lines
    from coexec.cli.output import check_plan_file, write_file
    from coexec.cli.progress import progress
    from coexec.selection.optimize import optimize
    from coexec.units import format_bytes

    file = output or default_plan(model)
    check_plan_file(file, model)
    with progress(f"loading {model}") as tell:
        verdict = optimize(model, options.settings(), time, tell)
    kept = verdict.plan_file if verdict.is_faster else None
    existed = file.exists()
    if kept is not None:
        write_file(file, kept)
    plan, decision = verdict.plan, verdict.decision
    same = ("is_faster", "ratio", "refused", "is_earlier", "untried", "doubt", "unfinished")
    result = OptimizeResult(
        verdict=str(verdict),
        onnx_runtime_s=None if plan is None else plan.reference_s,
        plan_s=None if plan is None else plan.measured_s,
        requests=None if plan is None else plan.requests,
        devices=None if plan is None else plan.devices,
        others=max(verdict.others, 0.0 if decision is None else decision.others),
        crash=verdict.crash,
        peak_bytes=verdict.peak_bytes,
        plan=None if kept is None else str(file),
        precision=None if decision is None else decision.precision,
        offer=None if decision is None else decision.offered,
        **{name: getattr(verdict, name) for name in same},
    )

    def text() -> Iterator[str]:
        replaced = ", in place of an earlier one" if existed else ""
        left = f"{file} is of an earlier call, and stays as it is"
        none = left if existed else "none was written: a program needs none to keep ONNX Runtime"
        peak, use = verdict.peak_bytes, f"coexec.InferenceSession({model!r}, plan={str(file)!r})"
        doubt = f"{verdict.doubt}; the next call goes on from here"
        yield from labelled(
            {
                "verdict": result.verdict,
                "precision": result.precision,
                "in doubt": None if verdict.doubt is None else doubt,
                "memory": None
                if peak is None
                else f"up to {format_bytes(peak)} to choose and race",
                "plan": none if kept is None else f"{file}{replaced}",
                "use it": None if kept is None else f"session = {use}",
            }
        )
        if decision is not None:
            when = ", of an earlier call; --fresh chooses anew" if verdict.is_earlier else ""
            yield f"\nThe candidates{when}:"
            yield from candidate_lines(decision, "first")
            yield from labelled({"offer": result.offer})

    return VerbOutput(result, text())
