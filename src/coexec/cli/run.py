"""`coexec run`: one inference, with an optional check of the outputs."""

from dataclasses import asdict
from functools import partial

from coexec.cli.options import (
    PLANNED,
    CheckOpt,
    DebugOpt,
    JsonOpt,
    ModelOrExportArg,
    OutputOpt,
    SettingOptions,
    TraceOpt,
    takes,
)
from coexec.cli.verbs import prints


@prints(
    latency_s="Seconds of the run.",
    differences="With --check: by output, the largest difference from ONNX Runtime, relative to "
    "the largest value. Else empty.",
    busy_s="By device, seconds that it computed or copied.",
    energy_j="Joules of one inference; null: counters cannot be read.",
    energy_unknown="Why not.",
)
@takes(*PLANNED, "waiting")
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    output: OutputOpt = None,
    check: CheckOpt = False,
    trace: TraceOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Run a model once, after two runs to warm up.

    --inputs and --output name .npz files; without --inputs, random numbers are used. --check
    compares the outputs with ONNX Runtime's on the model as it was given. --trace writes what ran
    when in a run of its own, in which engines also tell of the tasks inside of segments.
    """
    import numpy as np

    from coexec.cli.arrays import packed
    from coexec.cli.checks import check_outputs
    from coexec.cli.console import out
    from coexec.cli.gantt import draw
    from coexec.cli.output import check_files, print_json, write_file
    from coexec.cli.progress import progress
    from coexec.cli.recorded import write_trace
    from coexec.exports.opening import resolve_export
    from coexec.report.energy import measured_energy
    from coexec.runtime.recorder import RealRecorder
    from coexec.selection.prepare import prepare
    from coexec.units import format_joules, format_seconds

    check_files(output, trace)
    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        prepared = prepare(*resolve_export(model, config))
    work, compiled = prepared.work, prepared.compiled
    feeds, _ = work.model.accepted(work.given.reference)
    with work.start(prepared) as executor:
        for _ in range(2):
            executor.run(feeds)
        recorder = RealRecorder(compiled, work.names)
        outputs = executor.run(feeds, recorder)
        energy = measured_energy(partial(executor.run, feeds))
    ran = recorder.trace()
    if trace is not None:
        write_trace(trace, prepared, feeds, ran.makespan_s)
    if output is not None:
        write_file(output, packed(outputs))
    output_check = check_outputs(work, feeds, outputs) if check else None
    differences = {} if output_check is None else output_check.differences
    if json:
        facts = {
            "latency_s": ran.makespan_s,
            "differences": differences,
            "busy_s": {d: ran.busy_s(d) for d in work.names},
        } | asdict(energy)
        if output_check is not None:
            output_check.require_right(facts)
        print_json(facts)
        return
    print(draw(ran))
    out.print(f"{work.model.graph.name}: {format_seconds(ran.makespan_s)}")
    if energy.energy_j is not None:
        out.print(
            f"energy: {format_joules(energy.energy_j)}, all that the processors and their "
            f"memory draw meanwhile"
        )
    for name, array in outputs.items():
        note = f", differs by {differences[name]:.1e}" if check else ""
        kind = (
            f"{list(array.shape)} {array.dtype}"
            if isinstance(array, np.ndarray)
            else (type(array).__name__)
        )
        out.print(f"{name} {kind}{note}")
    if output_check is not None:
        out.print(f"check: {output_check.require_right()}")
