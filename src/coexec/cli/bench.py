"""`coexec bench`: the plan in turns with its baselines, each device alone and ONNX Runtime."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coexec.cli.options import (
    PLANNED,
    CheckOpt,
    ModelOrExportArg,
    SettingOptions,
    TraceOpt,
    verb,
)
from coexec.cli.verbs import VerbOutput

if TYPE_CHECKING:
    from coexec.report.ways import Way


@dataclass(frozen=True)
class Bench:
    """The race of a plan with its rivals."""

    model: str
    """Name of the graph."""
    base: str
    """The row that ratios are over: ONNX Runtime."""
    rows: "Sequence[Way]"
    """By row: name, same_as, predicted_s, init_s, warm_up_s; paced_s, paced_p90_s, paced_p99_s,
    paced_ratio and the same of loop: medians and percentiles of a request in seconds, and the
    median over the median of the base; requests_per_s in a loop; peak_bytes, energy_j,
    energy_unknown."""
    bound_s: float | None
    """No plan of whole tasks on bound_devices takes less; null: not known."""
    bound_devices: Sequence[str] | None
    """Devices of the bound."""
    disturbed_turns: int
    """Turns that began while other threads were busy."""
    difference: float | None
    """With --check: the largest difference from ONNX Runtime. Else null."""
    left_out: Mapping[str, str]
    """By device that could not run alone, the reason."""


@verb(Bench, *PLANNED, "waiting")
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    repeats: Annotated[int, typer.Option(help="Rounds of the race.")] = 20,
    check: CheckOpt = False,
    gantt: Annotated[bool, typer.Option(help="Draw a run of the plan.")] = False,
    trace: TraceOpt = None,
) -> VerbOutput:
    """Compare the plan with each device alone and with ONNX Runtime on the same cores.

    All take turns in one process, so that a noisy machine disturbs all alike. A turn begins when no
    thread of the turn before spins for work. If the plan is one of the devices alone, both rows
    have the same figures. There are two figures, because engines rank differently by them: requests
    at 30 a second, and requests in a loop. Peak memory is measured in a fresh process for each row.
    Energy per inference, of all processors and memory, is shown if this machine has counters.
    """
    from contextlib import ExitStack

    from coexec.cli.checks import check_outputs
    from coexec.cli.gantt import draw
    from coexec.cli.output import check_files
    from coexec.cli.progress import announce, progress
    from coexec.cli.recorded import write_trace
    from coexec.errors import UsageError
    from coexec.exports.opening import resolve_export
    from coexec.report.bound import bound_of
    from coexec.report.race import (
        alone_rivals,
        onnx_runtime_rival,
        plan_rival,
        predicted_time_s,
        race_rivals,
        recorded_run,
    )
    from coexec.report.ways import Way, gain_in_words
    from coexec.runtime.recorder import RealRecorder
    from coexec.selection.prepare import prepare

    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: measure at least once")
    check_files(trace)
    with progress(f"loading {model}") as tell:
        source, config = resolve_export(model, options.settings(progress=tell))
        prepared = prepare(source, config)
        work, predicted_s = prepared.work, predicted_time_s(prepared)
    name = config.planner if config.plan is None else "plan"
    feeds, _ = work.model.accepted(work.user_model.reference)
    with ExitStack() as stack:
        way = Way(name=name, predicted_s=predicted_s, is_plan=True)
        plan, executor = plan_rival(prepared, way, feeds, stack)
        alone, left_out = alone_rivals(prepared, feeds, stack)
        rivals = [*alone, plan, onnx_runtime_rival(work, feeds)]
        announce(f"measuring {len(rivals)} rows in {repeats} rounds")
        raced = race_rivals(rivals, repeats)
        recorder = RealRecorder(prepared.compiled, work.names)
        outputs = recorded_run(executor, feeds, recorder)
    checked = check_outputs(work, feeds, outputs) if check else None
    bound = bound_of(prepared, raced.fastest_s) if config.plan is None else None
    if trace is not None:
        write_trace(trace, prepared, feeds, recorder.trace().makespan_s)
    result = Bench(
        work.model.graph.name,
        next(way.name for way in raced.ways if way.is_base),
        raced.ways,
        None if bound is None else bound.seconds,
        None if bound is None else bound.devices,
        raced.disturbed,
        None if checked is None else max(checked.differences.values(), default=0.0),
        left_out,
    )

    def text() -> Iterator[Any]:
        yield f"{result.model} on {', '.join(work.names)}"
        yield from _tables(result)
        if bound is not None:
            yield f"bound: {bound}"
        if any(way.same_as for way in result.rows):
            yield "A = B: both are the same plan, which was measured once"
        if result.disturbed_turns:
            yield (
                f"{result.disturbed_turns} turns began while other threads of this process were "
                f"busy"
            )
        if gantt:
            yield draw(recorder.trace())
        if trace is not None:
            yield f"trace: {trace}, open it at ui.perfetto.dev"
        yield from (f"left out: {name} alone: {reason}" for name, reason in left_out.items())
        if checked is not None and checked.error is None:
            yield f"check: {checked.verdict}"
        if checked is None or checked.error is None:
            yield f"verdict: {gain_in_words(result.rows, raced.rounds_s)}"

    return VerbOutput(result, text(), None if checked is None else checked.error)


def _tables(found: Bench) -> Iterator[Any]:
    """Percentiles of a request by both figures, and the other figures."""
    from coexec.cli.console import show
    from coexec.selection.race import REQUESTS
    from coexec.units import format_bytes

    def peak(way: "Way") -> str:
        return "not known" if way.peak_bytes is None else format_bytes(way.peak_bytes)

    for figure, words in REQUESTS.items():
        yield f"\n{words} ({figure})"
        times: dict[str, Any] = {
            "": lambda way: f"{way.name} = {way.same_as}" if way.same_as else way.name,
            "p50": f"{figure}_s",
            "p90": f"{figure}_p90_s",
            "p99": f"{figure}_p99_s",
            "ratio": f"{figure}_ratio",
        }
        if figure == "loop":
            times["requests/s"] = lambda way: f"{way.requests_per_s:.1f}"
        yield show(found.rows, times)
    yield f"\nratio: p50 over that of {found.base}; requests/s: the mean"
    costs: dict[str, Any] = {
        "": "name",
        "predicted": "predicted_s",
        "init": "init_s",
        "warm-up": "warm_up_s",
        "peak memory": peak,
    }
    if any(way.energy_j is not None for way in found.rows):
        costs["energy"] = "energy_j"
    yield show(found.rows, costs)
