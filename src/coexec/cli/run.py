"""`coexec run`: one inference, with an optional check of the outputs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coexec.cli.options import (
    PLANNED,
    CheckOpt,
    ModelOrExportArg,
    OutputOpt,
    SettingOptions,
    TraceOpt,
    verb,
)
from coexec.cli.verbs import VerbOutput


@dataclass(frozen=True)
class RunResult:
    """A run of a plan."""

    latency_s: float
    """Seconds of the run."""
    differences: Mapping[str, float]
    """With --check: by output, the largest difference from ONNX Runtime, relative to the largest
    value. Else empty."""
    busy_s: Mapping[str, float]
    """By device, seconds that it computed or copied."""
    energy_j: float | None
    """Joules of one inference; null: counters cannot be read."""
    energy_unknown: str | None
    """Why not."""


@verb(RunResult, *PLANNED, "waiting")
def command(
    model: ModelOrExportArg,
    options: SettingOptions,
    output: OutputOpt = None,
    check: CheckOpt = False,
    trace: TraceOpt = None,
) -> VerbOutput:
    """Run a model once, after two runs to warm up.

    --inputs and --output name .npz files; without --inputs, random numbers are used. --check
    compares the outputs with ONNX Runtime's on the model as it was given. --trace writes what ran
    when in a run of its own, in which engines also tell of the tasks inside of segments.
    """
    from functools import partial

    import numpy as np

    from coexec.cli.arrays import packed
    from coexec.cli.checks import check_outputs
    from coexec.cli.gantt import draw
    from coexec.cli.output import check_files, write_file
    from coexec.cli.progress import progress
    from coexec.cli.recorded import write_trace
    from coexec.exports.opening import resolve_export
    from coexec.report.energy import measured_energy
    from coexec.runtime.recorder import RealRecorder
    from coexec.selection.prepare import prepare
    from coexec.timing.lanes import kernels_in_words
    from coexec.units import format_joules, format_seconds

    check_files(output, trace)
    with progress(f"loading {model}") as tell:
        prepared = prepare(*resolve_export(model, options.settings(progress=tell)))
    work = prepared.work
    feeds, _ = work.model.accepted(work.user_model.reference)
    with work.start(prepared) as executor:
        for _ in range(2):
            executor.run(feeds)
        recorder = RealRecorder(prepared.compiled, work.names)
        outputs = executor.run(feeds, recorder)
        energy_j, unknown = measured_energy(partial(executor.run, feeds))
    ran = recorder.trace()
    if trace is not None:
        write_trace(trace, prepared, feeds, ran.makespan_s)
    if output is not None:
        write_file(output, packed(outputs))
    checked = check_outputs(work, feeds, outputs) if check else None
    differences = {} if checked is None else checked.differences
    busy_s = {name: ran.busy_s(name) for name in work.names}

    def text() -> Iterator[Any]:
        yield draw(ran)
        yield f"{work.model.graph.name}: {format_seconds(ran.makespan_s)}"
        for name in dict.fromkeys(d.spec.name for d in work.devices):
            if words := kernels_in_words(ran.kernels_of(name)):
                yield f"{name}: {words}"
        if energy_j is not None:
            drawn = "all that the processors and their memory draw meanwhile"
            yield f"energy: {format_joules(energy_j)}, {drawn}"
        for name, array in outputs.items():
            note = f", differs by {differences[name]:.1e}" if name in differences else ""
            is_array = isinstance(array, np.ndarray)
            kind = f"{list(array.shape)} {array.dtype}" if is_array else type(array).__name__
            yield f"{name} {kind}{note}"
        if checked is not None and checked.error is None:
            yield f"check: {checked.verdict}"

    result = RunResult(ran.makespan_s, differences, busy_s, energy_j, unknown)
    return VerbOutput(result, text(), None if checked is None else checked.error)
