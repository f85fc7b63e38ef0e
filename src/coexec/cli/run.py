"""`coexec run`: one inference, checked if wanted."""

import io
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coexec.arguments import check_feeds
from coexec.choosing.prepare import prepare
from coexec.cli.common import (
    DEFAULTS,
    CacheOpt,
    DebugOpt,
    DevicesOpt,
    EngineOpt,
    FreshOpt,
    JsonOpt,
    ModelArg,
    OptionOpt,
    PinOpt,
    PlannerOpt,
    PlanOpt,
    ShapeOpt,
    TraceOpt,
    ValueOpt,
    WaitingOpt,
    differences,
    given_plan,
    judged,
    print_json,
    progress_bar,
    settings,
    write_file,
)
from coexec.cli.console import out
from coexec.cli.energy import measured_energy
from coexec.cli.gantt import draw
from coexec.cli.recorded import write_trace
from coexec.errors import InputError, UsageError
from coexec.frontend.load import random_inputs
from coexec.frontend.module import Array
from coexec.ir.graph import Graph
from coexec.runtime.recorder import RealRecorder
from coexec.units import format_joules, format_seconds


def command(
    model: ModelArg,
    plan: PlanOpt = None,
    devices: DevicesOpt = None,
    planner: PlannerOpt = DEFAULTS.planner,
    option: OptionOpt = None,
    pin: PinOpt = None,
    inputs: Path | None = None,
    output: Path | None = None,
    check: bool = False,
    trace: TraceOpt = None,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    waiting: WaitingOpt = DEFAULTS.waiting,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Run a model once, after two runs to warm up.

    --inputs and --output name .npz files; without --inputs, random numbers are used. --check
    compares the outputs with ONNX Runtime's on the model as it was given. --trace writes what ran
    when in a run of its own, in which engines also tell of the tasks inside of segments.
    """
    given, devices = given_plan(plan, devices)
    read = None if inputs is None else _read_inputs(inputs)

    def check_read(graph: Graph) -> None:
        if read is not None:
            check_feeds({name: graph.tensors[name] for name in graph.inputs}, read)

    with progress_bar(json) as tell:
        asked = settings(
            devices=devices, planner=planner, option=option, shape=shape, value=value,
            cache=cache, fresh=fresh,
            progress=tell, engine=engine, pin=pin, waiting=waiting,
        )  # fmt: skip
        found = prepare(model, asked, given, None if read is None else check_read)
    work, compiled = found.work, found.compiled
    wanted = {t.name: t for t in compiled.inputs}
    feeds = check_feeds(wanted, random_inputs(work.model.graph) if read is None else read)
    with work.start(found) as executor:
        for _ in range(2):
            executor.run(feeds)
        recorder = RealRecorder(compiled, work.names)
        outputs = executor.run(feeds, recorder)
        energy = measured_energy(partial(executor.run, feeds))
    ran = recorder.trace()
    if trace is not None:
        write_trace(trace, found, feeds, ran.makespan_s)
    if output is not None:
        write_file(output, _packed(outputs))
    unlike = differences(work, feeds, outputs) if check else {}
    if json:
        print_json({"latency_s": ran.makespan_s, "differences": unlike,
                    "busy_s": {d: ran.busy_s(d) for d in work.names}}
                   | asdict(energy))  # fmt: skip
    else:
        print(draw(ran))
        out.print(f"{work.model.graph.name}: {format_seconds(ran.makespan_s)}")
        if energy.energy_j is not None:
            out.print(f"energy: {format_joules(energy.energy_j)}, all that the processors and "
                      f"their memory draw meanwhile")  # fmt: skip
        for name, array in outputs.items():
            note = f", differs by {unlike[name]:.1e}" if check else ""
            kind = f"{list(array.shape)} {array.dtype}" if isinstance(array, np.ndarray) else (
                type(array).__name__)  # fmt: skip
            out.print(f"{name} {kind}{note}")
    said = judged(max(unlike.values(), default=0.0), work, feeds)
    if check and not json:
        out.print(f"check: {said}")


def _packed(outputs: Mapping[str, Any]) -> bytes:
    """The outputs as an .npz file; of a sequence, each array as NAME[0], NAME[1] and so on."""
    arrays: dict[str, Array] = {}
    for name, value in outputs.items():
        values = {f"{name}[{i}]": v for i, v in enumerate(value)} if isinstance(value, list) else {
            name: value}  # fmt: skip
        unlike = [v for v in values.values() if not isinstance(v, np.ndarray | np.generic)]
        if unlike:
            raise UsageError(f"output {name!r} holds a {type(unlike[0]).__name__}, and .npz files "
                             f"hold arrays only; run without --output")  # fmt: skip
        arrays |= {n: np.asarray(v) for n, v in values.items()}
    buffer = io.BytesIO()
    texts = {n: a.astype(str) if a.dtype == object else a for n, a in arrays.items()}
    np.savez(buffer, allow_pickle=False, **texts)
    return buffer.getvalue()


def _read_inputs(path: Path) -> Mapping[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:
        raise InputError(f"cannot read the inputs {str(path)!r}: {error}; write them with "
                         f"numpy.savez(path, INPUT=array)") from None  # fmt: skip
