"""`coexec bench`: the plan in turns with its baselines, each device alone and ONNX Runtime."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from coexec.choosing.idle import Rest
from coexec.choosing.prepare import prepare
from coexec.choosing.race import REQUESTS
from coexec.cli.common import (
    DEFAULTS,
    CacheOpt,
    DebugOpt,
    DevicesOpt,
    EngineOpt,
    FreshOpt,
    InputsOpt,
    JsonOpt,
    ModelOrExportArg,
    OptionOpt,
    PinOpt,
    PlannerOpt,
    PlanOpt,
    ShapeOpt,
    TraceOpt,
    ValueOpt,
    WaitingOpt,
    differences,
    judged,
    print_json,
    progress_bar,
    settings,
)
from coexec.cli.console import out
from coexec.cli.gantt import draw
from coexec.cli.peak import of_onnx_runtime, of_plan
from coexec.cli.planned import LowerBound, bound_of
from coexec.cli.recorded import write_trace
from coexec.cli.standings import Row, Standings, raced
from coexec.engines.names import default_names
from coexec.errors import DeviceError, UsageError
from coexec.exports.opening import resolve_export
from coexec.frontend.module import Array
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Runner
from coexec.timing.simulate import simulate
from coexec.units import format_bytes, format_joules, format_seconds
from coexec.workbench import Prepared, Workbench


def command(
    model: ModelOrExportArg,
    devices: DevicesOpt = None,
    planner: PlannerOpt = DEFAULTS.planner,
    plan: PlanOpt = None,
    option: OptionOpt = None,
    pin: PinOpt = None,
    repeats: int = 20,
    check: bool = False,
    gantt: bool = False,
    trace: TraceOpt = None,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    inputs: InputsOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    waiting: WaitingOpt = DEFAULTS.waiting,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Compare the plan with each device alone and with ONNX Runtime on the same cores.

    All take turns in one process, so that a noisy machine disturbs all alike, and each begins when
    the threads of the one before have stopped spinning for work. A plan that is one of the devices
    alone runs once for both rows. Two figures: requests at 30 a second, and requests in a loop;
    engines rank differently by them. Peak memory is that of a fresh process for each. Energy, where
    this machine lets its counters be read, is all that processors and memory draw per inference.
    """
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: measure at least once")
    with progress_bar(json) as tell:
        asked = settings(
            devices=devices, planner=planner, plan=plan, option=option, shape=shape, value=value,
            inputs=inputs, cache=cache, fresh=fresh,
            progress=tell, engine=engine, pin=pin, waiting=waiting,
        )  # fmt: skip
        model, asked = resolve_export(model, asked)
        ours = prepare(model, asked)
        work, predicted_s = ours.work, _predicted_s(ours)
    feeds = next(work.model.candidates())
    name = planner if asked.plan is None else "plan"
    with ExitStack() as stack:
        plan_row, executor = _ours(ours, name, predicted_s, feeds, stack)
        plan_row.is_baseline = False
        alone, left_out = _alone_rows(ours, feeds, stack)
        standings = raced([*alone, plan_row, _onnx_runtime(work, feeds)], repeats)
        recorder = RealRecorder(ours.compiled, work.names)
        found = _recorded(executor, feeds, recorder)
    worst = max(differences(work, feeds, found).values()) if check else None
    bound = bound_of(ours, standings.fastest_s) if asked.plan is None else None
    if trace is not None:
        write_trace(trace, ours, feeds, recorder.trace().makespan_s)
    if json:
        print_json(_as_json(work, standings, bound, worst) | {"left_out": left_out})
    else:
        _print(work, standings, bound, recorder if gantt else None, trace)
        for name, reason in left_out.items():
            out.print(f"left out: {name} alone: {reason}")
    said = judged(worst or 0.0, work, feeds)
    if worst is not None and not json:
        out.print(f"check: {said}")


def _predicted_s(plan: Prepared) -> float | None:
    """What the plan takes by the profile; of a plan from a file, what its planner has promised:
    nothing is profiled for it."""
    if plan.work.settings.plan is not None:
        return plan.plan.provenance.predicted_s
    return simulate(plan.schedule, plan.cost, plan.system).makespan_s


def _recorded(
    executor: Runner, feeds: Mapping[str, Array], recorder: RealRecorder
) -> Mapping[str, Array]:
    """The outputs of a run that the recorder sees, after one that warms up."""
    Rest().until_idle()
    executor.run(feeds)
    return executor.run(feeds, recorder)


def _alone(plan: Prepared) -> dict[str, float | None]:
    """Single devices to compare with, and their predicted times: those that "auto" considered,
    else those of the plan, if there are several."""
    considered = {
        c.devices[0]: c.predicted_s
        for c in plan.candidates
        if len(c.devices) == 1 and c.refused is None
    }
    if considered:
        return considered
    if plan.work.settings.plan is not None:
        return dict.fromkeys(plan.work.asked) if len(plan.work.asked) > 1 else {}
    cost, system = plan.work.measured
    places = system.places if len(system.places) > 1 else ()
    asked = plan.work.settings.devices or default_names()
    return {name: cost.total_s(place) for name, place in zip(asked, places, strict=False)}


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
    plan: Prepared, name: str, predicted_s: float | None, feeds: Mapping[str, Array],
    stack: ExitStack,
) -> tuple[Row, Runner]:  # fmt: skip
    Rest().until_idle()
    start_s = time.perf_counter()
    executor = stack.enter_context(plan.work.start(plan))
    init_s = time.perf_counter() - start_s
    run, peak = partial(executor.run, feeds), partial(of_plan, plan.work, plan.plan, feeds)
    row = Row(name, predicted_s, run, peak, plan.compiled.segments, init_s=init_s)
    return row, executor


def _onnx_runtime(work: Workbench, feeds: Mapping[str, Array]) -> Row:
    threads = max(1, sum(len(device.spec.cores) for device in work.devices))
    Rest().until_idle()
    start_s = time.perf_counter()
    session = work.given.onnx_runtime(threads)
    init_s = time.perf_counter() - start_s
    run = partial(session.run, None, dict(feeds))
    peak = partial(of_onnx_runtime, work, threads, feeds)
    return Row(f"ORT, {threads} threads", None, run, peak, init_s=init_s)


def _as_json(
    work: Workbench, standings: Standings, bound: LowerBound | None, worst: float | None
) -> dict[str, Any]:
    return {
        "model": work.model.graph.name,
        "best_baseline": standings.best,
        "rows": [standings.facts(row) for row in standings.rows],
        "bound_s": None if bound is None else bound.seconds,
        "bound_devices": None if bound is None else bound.devices,
        "disturbed_turns": standings.outcome.disturbed,
        "difference": worst,
    }


def _print(
    work: Workbench, standings: Standings, bound: LowerBound | None, recorder: RealRecorder | None,
    trace: Path | None,
) -> None:  # fmt: skip
    out.print(f"{work.model.graph.name} on {', '.join(work.names)}")
    out.print(_table(standings))
    for figure, name in standings.best.items():
        out.print(f"{figure}: {REQUESTS[figure]}; ratio: time over that of the best baseline, "
                  f"{name}")  # fmt: skip
    if bound is not None:
        out.print(f"bound: {bound}")
    if standings.same_as:
        out.print("A = B: both are the same plan, which was measured once")
    if disturbed := standings.outcome.disturbed:
        out.print(f"{disturbed} turns began while other threads of this process were busy")
    if recorder is not None:
        print(draw(recorder.trace()))
    if trace is not None:
        out.print(f"trace: {trace}, open it at ui.perfetto.dev")


def _table(standings: Standings) -> Table:
    columns = ["", "init", "warm-up", "predicted"]
    for figure in REQUESTS:
        columns += [figure, "ratio"]
    known = any(row.energy.energy_j is not None for row in standings.rows)
    columns += [*(["energy"] if known else []), "peak memory"]
    table = Table(*columns, box=None, padding=(0, 1, 0, 0))
    table.columns[0].overflow = "fold"
    for row in standings.rows:
        facts = standings.facts(row)
        cells = [_seconds(facts[key]) for key in ("init_s", "warm_up_s", "predicted_s")]
        for figure in REQUESTS:
            cells += [_seconds(facts[f"{figure}_s"]), f"{facts[f'{figure}_ratio']:.2f}"]
        if known:
            joules = row.energy.energy_j
            cells.append("" if joules is None else format_joules(joules))
        same = f" = {facts['same_as']}" if facts["same_as"] else ""
        memory = "not known" if row.peak_bytes is None else format_bytes(row.peak_bytes)
        table.add_row(row.name + same, *cells, memory)
    return table


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)
