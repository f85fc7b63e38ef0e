"""`coexec bench`: the plan in turns with its baselines, each device alone and ONNX Runtime."""

from contextlib import ExitStack
from typing import Annotated

import typer

from coexec.cli.options import (
    PLANNED,
    CheckOpt,
    DebugOpt,
    JsonOpt,
    ModelOrExportArg,
    SettingOptions,
    TraceOpt,
    takes,
)
from coexec.cli.verbs import prints


@prints(
    model="Name of the graph.",
    base="The row that ratios are over: ONNX Runtime.",
    rows="By row: name, same_as, predicted_s, init_s, warm_up_s; paced_s, paced_p90_s, "
    "paced_p99_s, paced_ratio and the same of loop: medians and percentiles of a request "
    "in seconds, and the median over the median of the base; requests_per_s in a loop; "
    "peak_bytes, energy_j, energy_unknown.",
    bound_s="No plan of whole tasks on bound_devices takes less; null: not known.",
    bound_devices="Devices of the bound.",
    disturbed_turns="Turns that began while other threads were busy.",
    difference="With --check: the largest difference from ONNX Runtime. Else null.",
    left_out="By device that could not run alone, the reason.",
)
@takes(*PLANNED, "waiting")
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    repeats: Annotated[int, typer.Option(help="Rounds of the race.")] = 20,
    check: CheckOpt = False,
    gantt: Annotated[bool, typer.Option(help="Draw a run of the plan.")] = False,
    trace: TraceOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Compare the plan with each device alone and with ONNX Runtime on the same cores.

    All take turns in one process, so that a noisy machine disturbs all alike. A turn begins when no
    thread of the turn before spins for work. If the plan is one of the devices alone, both rows
    have the same figures. There are two figures, because engines rank differently by them: requests
    at 30 a second, and requests in a loop. Peak memory is measured in a fresh process for each row.
    Energy per inference, of all processors and memory, is shown if this machine has counters.
    """
    from coexec.cli.bench_tables import bench_facts, gain_in_words, print_bench
    from coexec.cli.checks import check_outputs
    from coexec.cli.console import out
    from coexec.cli.output import check_files, print_json
    from coexec.cli.progress import announce, progress
    from coexec.cli.recorded import write_trace
    from coexec.errors import UsageError
    from coexec.exports.opening import resolve_export
    from coexec.report.bound import bound_of
    from coexec.report.rivals import (
        alone_rows,
        predicted_time_s,
        recorded_run,
        row_of_onnx_runtime,
        row_of_plan,
    )
    from coexec.report.standings import race_rows
    from coexec.runtime.recorder import RealRecorder
    from coexec.selection.prepare import prepare

    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: measure at least once")
    check_files(trace)
    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        model, config = resolve_export(model, config)
        prepared = prepare(model, config)
        work, predicted_s = prepared.work, predicted_time_s(prepared)
    name = config.planner if config.plan is None else "plan"
    feeds, _ = work.model.accepted(work.given.reference)
    with ExitStack() as stack:
        plan_row, executor = row_of_plan(prepared, name, predicted_s, feeds, stack)
        alone, left_out = alone_rows(prepared, feeds, stack)
        rows = [*alone, plan_row, row_of_onnx_runtime(work, feeds)]
        announce(f"measuring {len(rows)} rows in {repeats} rounds")
        standings = race_rows(rows, repeats)
        recorder = RealRecorder(prepared.compiled, work.names)
        outputs = recorded_run(executor, feeds, recorder)
    output_check = check_outputs(work, feeds, outputs) if check else None
    worst = None if output_check is None else max(output_check.differences.values(), default=0.0)
    bound = bound_of(prepared, standings.fastest_s) if config.plan is None else None
    if trace is not None:
        write_trace(trace, prepared, feeds, recorder.trace().makespan_s)
    if json:
        facts = bench_facts(work, standings, bound, worst) | {"left_out": left_out}
        if output_check is not None:
            output_check.require_right(facts)
        print_json(facts)
        return
    print_bench(work, standings, bound, recorder if gantt else None, trace)
    for name, reason in left_out.items():
        out.print(f"left out: {name} alone: {reason}")
    if output_check is not None:
        out.print(f"check: {output_check.require_right()}")
    out.print(f"verdict: {gain_in_words(standings, plan_row.name)}")
