"""`coexec bench`: the plan in turns with its baselines, each device alone and ONNX Runtime."""

import multiprocessing
import re
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from coexec.choosing.idle import REAL, Rest
from coexec.choosing.prepare import prepare
from coexec.choosing.race import REQUESTS, Outcome, race
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
    ShapeOpt,
    TraceOpt,
    WaitingOpt,
    differences,
    out,
    print_json,
    progress_bar,
    refuse_difference,
    settings,
    tolerance,
    write_file,
)
from coexec.cli.gantt import draw
from coexec.engines.names import default_names
from coexec.errors import DeviceError, UsageError
from coexec.frontend.inputs import filled, random_inputs
from coexec.frontend.module import Array
from coexec.plans.plan import Plan
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.timing.simulate import simulate
from coexec.units import format_bytes, format_seconds
from coexec.workbench import Prepared, Requests, Settings, Workbench


@dataclass
class Row:
    """One way to run the model, with what was measured of it before the race."""

    name: str
    predicted_s: float | None
    run: Callable[[], Any]
    is_baseline: bool = True
    init_s: float = 0.0
    warm_up_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True)
class Standings:
    """The rows with the figures of their race."""

    rows: Sequence[Row]
    outcome: Outcome[str]

    @cached_property
    def best(self) -> Mapping[Requests, str]:
        """The baseline with the least median, by figure."""
        names = [row.name for row in self.rows if row.is_baseline]
        return {
            figure: min(names, key=lambda n: statistics.median(self.outcome.rounds_s(n, figure)))
            for figure in REQUESTS
        }

    def facts(self, row: Row) -> dict[str, Any]:
        """A row for programs. Ratios are over the best baseline by the same figure."""
        facts: dict[str, Any] = {
            "name": row.name, "init_s": row.init_s, "warm_up_s": row.warm_up_s,
            "predicted_s": row.predicted_s,
        }  # fmt: skip
        for figure in REQUESTS:
            samples_s = self.outcome.samples_s(row.name, figure)
            median_s, p90_s, p99_s = map(float, np.percentile(samples_s, [50, 90, 99]))
            ratio = self.outcome.ratio(row.name, self.best[figure], figure)
            facts |= {f"{figure}_s": median_s, f"{figure}_p90_s": p90_s, f"{figure}_p99_s": p99_s,
                      f"{figure}_ratio": ratio}  # fmt: skip
        return facts | {"peak_bytes": row.peak_bytes}


def command(
    model: ModelArg,
    devices: DevicesOpt = None,
    planner: PlannerOpt = DEFAULTS.planner,
    option: OptionOpt = None,
    pin: PinOpt = None,
    repeats: int = 20,
    check: bool = False,
    gantt: bool = False,
    trace: TraceOpt = None,
    shape: ShapeOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    waiting: WaitingOpt = DEFAULTS.waiting,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Compare the plan with each device alone and with ONNX Runtime on the same cores.

    All take turns in one process, so that a noisy machine disturbs all alike, and each begins when
    the threads of the one before have stopped spinning for work. Two figures: requests at 30 a
    second, and requests in a loop; engines rank differently by them. Peak memory is that of a fresh
    process for each.
    """
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: measure at least once")
    with progress_bar(json) as tell:
        asked = settings(
            devices=devices, planner=planner, option=option, shape=shape, cache=cache, fresh=fresh,
            progress=tell, engine=engine, pin=pin, waiting=waiting,
        )  # fmt: skip
        plan = prepare(model, asked)
        work = plan.work
        predicted_s = simulate(plan.schedule, plan.cost, plan.system).makespan_s
    feeds = random_inputs(work.model.graph)
    with ExitStack() as stack:
        plan_row, executor = _ours(plan, planner, predicted_s, feeds, stack)
        plan_row.is_baseline = False
        alone, left_out = _alone_rows(plan, feeds, stack)
        rows = [*alone, plan_row, _onnx_runtime(work, feeds)]
        standings = _raced(rows, repeats)
        recorder = RealRecorder(plan.compiled, work.names)
        found = _recorded(executor, feeds, recorder)
    worst = max(differences(work, feeds, found).values()) if check else None
    for row in rows:
        row.peak_bytes = _peak_bytes(work, row.name, plan.plan)
    if trace is not None:
        write_file(trace, recorder.trace().to_chrome())
    if json:
        print_json(_as_json(work, standings, worst) | {"left_out": left_out})
    else:
        _print(work, standings, recorder if gantt else None, trace, worst)
        for name, reason in left_out.items():
            out.print(f"left out: {name} alone: {reason}", markup=False)
    refuse_difference(worst or 0.0, work)


def _raced(rows: Sequence[Row], rounds: int) -> Standings:
    for row in rows:
        row.warm_up_s = REAL.timed(row.run)
        row.run()
    outcome = race({row.name: row.run for row in rows}, (rounds, rounds))
    return Standings(rows, outcome.complete())


def _recorded(
    executor: Executor, feeds: Mapping[str, Array], recorder: RealRecorder
) -> Mapping[str, Array]:
    """The outputs of a run that the recorder sees, after one that warms up."""
    Rest().until_idle()
    executor.run(feeds)
    return executor.run(feeds, recorder)


def _alone(plan: Prepared) -> dict[str, float]:
    """Single devices to compare with, and their predicted times: those that "auto" considered,
    else those of the plan, if there are several."""
    considered = {
        c.devices[0]: c.predicted_s
        for c in plan.candidates
        if len(c.devices) == 1 and c.refused is None
    }
    cost, system = plan.work.measured
    places = system.places if len(system.places) > 1 else ()
    asked = plan.work.settings.devices or default_names()
    return considered or {
        name: cost.total_s(place) for name, place in zip(asked, places, strict=False)
    }


def _alone_rows(
    plan: Prepared, feeds: Mapping[str, Array], stack: ExitStack
) -> tuple[list[Row], dict[str, str]]:
    """Each device alone; and why those are left out that cannot be open beside the others."""
    work, rows, left_out = plan.work, [], {}
    for name, predicted_s in _alone(plan).items():
        try:
            alone = Workbench(work.given.source, replace(work.settings, devices=[name], pins={}))
            single = alone.prepared_by("single", {})
            rows.append(_ours(single, f"{name} alone", predicted_s, feeds, stack)[0])
        except DeviceError as error:  # some engines compute on one set of cores at a time
            left_out[name] = str(error)
    return rows, left_out


def _ours(
    plan: Prepared, name: str, predicted_s: float, feeds: Mapping[str, Array], stack: ExitStack
) -> tuple[Row, Executor]:
    start_s = time.perf_counter()
    executor = stack.enter_context(plan.work.start(plan))
    init_s = time.perf_counter() - start_s
    return Row(name, predicted_s, partial(executor.run, feeds), init_s=init_s), executor


def _onnx_runtime(work: Workbench, feeds: Mapping[str, Array]) -> Row:
    threads = max(1, sum(len(device.spec.cores) for device in work.devices))
    start_s = time.perf_counter()
    session = work.given.onnx_runtime(threads)
    init_s = time.perf_counter() - start_s
    run = partial(session.run, None, dict(feeds))
    return Row(f"ORT, {threads} threads", None, run, init_s=init_s)


def _peak_bytes(work: Workbench, name: str, plan: Plan) -> int:
    """Peak resident memory of a fresh process that starts from the cache and runs twice."""
    if name.startswith("ORT"):
        return 0
    alone = name.endswith(" alone")
    names = [name.removesuffix(" alone")] if alone else list(work.asked)
    text = None if alone else plan.to_json()
    asked = replace(
        work.settings, devices=names, cache=str(work.cache.root), fresh=False, progress=None
    )
    arguments = (work.given.source, asked, text)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return int(pool.apply(_measure_peak, arguments))


def _measure_peak(source: Any, settings: Settings, plan: str | None) -> int:
    work = Workbench(source, settings)
    found = work.prepared(work.plan("single") if plan is None else Plan.from_json(plan))
    feeds = {t.name: filled(t, 0) for t in found.compiled.inputs}
    with work.start(found) as executor:
        for _ in range(2):
            executor.run(feeds)
    return _own_peak_bytes()


def _own_peak_bytes() -> int:
    try:  # getrusage also counts what the parent held when it started this process
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])  # type: ignore[index]
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _as_json(work: Workbench, standings: Standings, worst: float | None) -> dict[str, Any]:
    return {
        "model": work.model.graph.name,
        "best_baseline": standings.best,
        "rows": [standings.facts(row) for row in standings.rows],
        "disturbed_turns": standings.outcome.disturbed,
        "difference": worst,
    }


def _print(
    work: Workbench, standings: Standings, recorder: RealRecorder | None, trace: Path | None,
    worst: float | None,
) -> None:  # fmt: skip
    out.print(f"{work.model.graph.name} on {', '.join(work.names)}")
    out.print(_table(standings))
    for figure, name in standings.best.items():
        out.print(f"{figure}: {REQUESTS[figure]}; ratio: time over that of the best baseline, "
                  f"{name}")  # fmt: skip
    if disturbed := standings.outcome.disturbed:
        out.print(f"{disturbed} turns began while other threads of this process were busy")
    if recorder is not None:
        print(draw(recorder.trace()))
    if trace is not None:
        out.print(f"trace: {trace}, open it at ui.perfetto.dev")
    if worst is not None:
        out.print(f"check: outputs differ from ONNX Runtime's by {worst:.1e} of the largest value "
                  f"({tolerance(work):.0e} is allowed)")  # fmt: skip


def _table(standings: Standings) -> Table:
    columns = ["", "init", "warm-up", "predicted"]
    for figure in REQUESTS:
        columns += [figure, "ratio"]
    table = Table(*columns, "peak memory", box=None, padding=(0, 1, 0, 0))
    for row in standings.rows:
        facts = standings.facts(row)
        cells = [_seconds(facts[key]) for key in ("init_s", "warm_up_s", "predicted_s")]
        for figure in REQUESTS:
            cells += [_seconds(facts[f"{figure}_s"]), f"{facts[f'{figure}_ratio']:.2f}"]
        table.add_row(row.name, *cells, format_bytes(row.peak_bytes) if row.peak_bytes else "")
    return table


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)
