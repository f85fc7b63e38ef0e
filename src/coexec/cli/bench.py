"""`coexec bench`: each device alone, the plan, and ONNX Runtime, measured turn by turn."""

import multiprocessing
import re
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from coexec.choosing.auto import Choice
from coexec.cli.common import (
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
    ShapeOpt,
    TraceOpt,
    WaitingOpt,
    decide,
    differences,
    out,
    planner_options,
    print_json,
    progress_bar,
    refuse_difference,
    tolerance,
    write_file,
)
from coexec.cli.gantt import draw
from coexec.engines.options import EngineOptions
from coexec.errors import DeviceError, UsageError
from coexec.frontend.load import random_inputs
from coexec.frontend.module import Array
from coexec.plans.plan import Plan
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.timing.simulate import simulate
from coexec.units import format_bytes, format_seconds
from coexec.workbench import Workbench

_REST_S = 0.03
"""Before each run: the threads of a rival that spins for work leave the cores to the next."""


@dataclass
class Row:
    """One way to run the model, with what was measured of it."""

    name: str
    predicted_s: float | None
    run: Callable[[], Any]
    init_s: float = 0.0
    warm_up_s: float = 0.0
    samples_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def facts(self) -> dict[str, Any]:
        median, p90, p99 = np.percentile(self.samples_s, [50, 90, 99])
        return {
            "name": self.name, "init_s": self.init_s, "warm_up_s": self.warm_up_s,
            "predicted_s": self.predicted_s, "median_s": float(median), "p90_s": float(p90),
            "p99_s": float(p99), "peak_bytes": self.peak_bytes,
        }  # fmt: skip


def command(
    model: ModelArg,
    devices: DevicesOpt = None,
    planner: PlannerOpt = "auto",
    option: OptionOpt = None,
    pin: PinOpt = None,
    repeats: int = 20,
    check: bool = False,
    gantt: bool = False,
    trace: TraceOpt = None,
    shape: ShapeOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    waiting: WaitingOpt = "passive",
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Compare the plan with each device alone and with ONNX Runtime on the same cores.

    All ways run turn by turn in one process, so that a noisy machine disturbs all alike; peak
    memory is that of a fresh process for each.
    """
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: measure at least once")
    options = planner_options(option)
    with progress_bar(json) as tell:
        choice = decide(
            model, devices, planner, options, shape=shape, cache=cache, fresh=fresh, progress=tell,
            engine=engine, pin=pin, waiting=waiting,
        )  # fmt: skip
        work = choice.work
        cost, system = work.measured
    feeds = random_inputs(work.model.graph)
    predicted = simulate(work.schedule(choice.plan), cost, system)
    planned, executor, compiled = _ours(work, planner, predicted.makespan_s, choice.plan, feeds)
    rows, executors, left_out = _singles(choice, feeds)
    rows += [planned, _rival(work, feeds)]
    executors.append(executor)
    for row in rows:
        start_s = time.perf_counter()
        row.run()
        row.warm_up_s = time.perf_counter() - start_s
        row.run()
    for _ in range(repeats):
        for row in rows:
            time.sleep(_REST_S)
            start_s = time.perf_counter()
            row.run()
            row.samples_s.append(time.perf_counter() - start_s)
    time.sleep(_REST_S)
    executors[-1].run(feeds)
    recorder = RealRecorder(compiled, work.names)
    found = executors[-1].run(feeds, recorder)
    for executor in executors:
        executor.close()
    worst = max(differences(work, feeds, found).values()) if check else None
    for row in rows:
        row.peak_bytes = _peak_bytes(work, row.name, choice.plan)
    if trace is not None:
        write_file(trace, recorder.trace().to_chrome())
    if json:
        print_json({"model": work.model.graph.name, "rows": [r.facts() for r in rows],
                    "left_out": left_out, "difference": worst})  # fmt: skip
    else:
        _print(work, rows, recorder if gantt else None, trace, worst)
        for name, reason in left_out.items():
            out.print(f"left out: {name} alone: {reason}", markup=False)
    refuse_difference(worst or 0.0, work)


def _alone(choice: Choice) -> dict[str, float]:
    """Single devices to compare with, and their predicted times: those that "auto" considered,
    else those of the plan, if there are several."""
    considered = {
        c.devices[0]: c.predicted_s
        for c in choice.candidates
        if len(c.devices) == 1 and c.refused is None
    }
    cost, system = choice.work.measured
    places = system.places if len(system.places) > 1 else ()
    return considered or {str(place): cost.total_s(place) for place in places}


def _singles(
    choice: Choice, feeds: Mapping[str, Array]
) -> tuple[list[Row], list[Executor], dict[str, str]]:
    """Each device alone; and why those are left out that cannot be open beside the others."""
    work = choice.work
    rows, executors, left_out = [], [], {}
    for name, predicted_s in _alone(choice).items():
        try:
            alone = Workbench(
                work.source, [name], shapes=work.shapes, cache=work.cache,
                engine_options=work.engine_options,
            )  # fmt: skip
            plan = alone.plan("single")
            row, executor, _ = _ours(alone, f"{name} alone", predicted_s, plan, feeds)
        except DeviceError as error:
            left_out[name] = str(error)
            continue
        rows.append(row)
        executors.append(executor)
    return rows, executors, left_out


def _ours(
    work: Workbench, name: str, predicted_s: float, plan: Plan, feeds: Mapping[str, Array]
) -> tuple[Row, Executor, Any]:
    start_s = time.perf_counter()
    compiled = work.compiled_plan(plan)
    executor = work.start(compiled)
    row = Row(name, predicted_s, lambda: executor.run(feeds))
    row.init_s = time.perf_counter() - start_s
    return row, executor, compiled


def _rival(work: Workbench, feeds: Mapping[str, Array]) -> Row:
    cores = [core for d in work.devices for core in d.spec.cores]
    threads = max(1, len(cores))
    start_s = time.perf_counter()
    session = work.onnx_runtime(threads)
    row = Row(f"ORT, {threads} threads", None, lambda: session.run(None, dict(feeds)))
    row.init_s = time.perf_counter() - start_s
    return row


def _peak_bytes(work: Workbench, name: str, plan: Plan) -> int:
    """Peak resident memory of a fresh process that starts from the cache and runs twice."""
    if name.startswith("ORT"):
        return 0
    alone = name.endswith(" alone")
    names = [name.removesuffix(" alone")] if alone else list(work.asked)
    text = None if alone else plan.to_json()
    arguments = (work.source, names, text, work.shapes, work.engine_options, str(work.cache.root))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return int(pool.apply(_measure_peak, arguments))


def _measure_peak(
    source: Any, devices: Sequence[str], plan: str | None, shapes: Mapping[str, Sequence[int]],
    engine_options: EngineOptions, cache: str,
) -> int:  # fmt: skip
    work = Workbench(source, devices, shapes=shapes, cache=cache, engine_options=engine_options)
    compiled = work.compiled_plan(work.plan("single") if plan is None else Plan.from_json(plan))
    feeds = {t.name: np.zeros(t.shape, t.dtype) for t in compiled.inputs}
    with work.start(compiled) as executor:
        for _ in range(2):
            executor.run(feeds)
    return _own_peak_bytes()


def _own_peak_bytes() -> int:
    try:  # getrusage also counts what the parent held when it started this process
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])  # type: ignore[index]
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _print(
    work: Workbench, rows: Sequence[Row], recorder: RealRecorder | None, trace: Path | None,
    worst: float | None,
) -> None:  # fmt: skip
    table = Table("", "init", "warm-up", "predicted", "median", "p90", "p99", "peak memory",
                  "speed", box=None, padding=(0, 1, 0, 0))  # fmt: skip
    base = min((r.facts()["median_s"] for r in rows if r.name.endswith(" alone")), default=None)
    for row in rows:
        f = row.facts()
        keys = ("init_s", "warm_up_s", "predicted_s", "median_s", "p90_s", "p99_s")
        cells = ["" if f[k] is None else format_seconds(f[k]) for k in keys]
        peak = format_bytes(row.peak_bytes) if row.peak_bytes else ""
        speed = f"{base / f['median_s']:.2f}x" if base else ""
        table.add_row(row.name, *cells, peak, speed)
    out.print(f"{work.model.graph.name} on {', '.join(work.names)}; speed against the best "
              f"device alone")  # fmt: skip
    out.print(table)
    if recorder is not None:
        print(draw(recorder.trace()))
    if trace is not None:
        out.print(f"trace: {trace}, open it at ui.perfetto.dev")
    if worst is not None:
        out.print(f"check: outputs differ from ONNX Runtime's by {worst:.1e} of the largest value "
                  f"({tolerance(work):.0e} is allowed)")  # fmt: skip
