"""`coexec explain`: for each task its device, why, predicted and measured time, bytes moved."""

from dataclasses import asdict

from rich.table import Table

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
    ValueOpt,
    format_candidate,
    given_plan,
    out,
    print_json,
    progress_bar,
    settings,
)
from coexec.errors import UsageError
from coexec.plans.derive import stepwise
from coexec.profiling.profiler import measure_in_place
from coexec.timing.explain import explain
from coexec.timing.simulate import simulate
from coexec.units import format_bytes, format_seconds


def command(
    model: ModelArg,
    plan: PlanOpt = None,
    devices: DevicesOpt = None,
    planner: PlannerOpt = DEFAULTS.planner,
    option: OptionOpt = None,
    pin: PinOpt = None,
    top: int = 30,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Say of each task why it is where it is. Measured times are of tasks one after the other."""
    if top < 1:
        raise UsageError(f"--top {top}: list 1 task or more")
    given, devices = given_plan(plan, devices)
    with progress_bar(json) as tell:
        asked = settings(
            devices=devices, planner=planner, option=option, shape=shape, value=value,
            cache=cache, fresh=fresh,
            progress=tell, engine=engine, pin=pin,
        )  # fmt: skip
        found = prepare(model, asked, given)
        cost, system = found.cost, found.system
    work, chosen, schedule = found.work, found.plan, found.schedule
    reasons = explain(chosen, schedule, cost, system, work.pinned_tasks(cost, system))
    place_of = {piece.task: place for piece, place in chosen.place_of.items()}
    whole = all(p == schedule.graph.whole_piece(schedule.graph.task[p.task])
                for p in chosen.device_of)  # fmt: skip
    measured: dict[str, float] = {}
    if whole:  # parts of a task cannot run as steps of their own
        steps = stepwise(schedule.graph, place_of)
        measured = measure_in_place(work.compiler, steps, work.devices)
    if json:
        rows = [asdict(r) | {"measured_s": measured.get(r.task)} for r in reasons]
        print_json({"candidates": [asdict(c) for c in found.candidates], "tasks": rows})
        return
    for candidate in found.candidates:
        out.print(f"tried: {format_candidate(candidate)}", markup=False)
    out.print(f"plan: {chosen.provenance.planner}, predicted "
              f"{format_seconds(simulate(schedule, cost, system).makespan_s)}")  # fmt: skip
    table = Table("task", "device", "engine", "predicted", "measured", "moved", "why", box=None)
    longest = sorted(reasons, key=lambda r: -r.predicted_s)[:top]
    for reason in (r for r in reasons if r in longest):
        seconds = measured.get(reason.task)
        table.add_row(
            reason.task, reason.device, reason.engine, format_seconds(reason.predicted_s),
            "" if seconds is None else format_seconds(seconds),
            format_bytes(reason.moved_bytes) if reason.moved_bytes else "", reason.why,
        )  # fmt: skip
    out.print(table)
    if len(reasons) > top:
        out.print(f"the {top} longest of {len(reasons)} tasks; --top lists more")
