"""`coexec explain`: why tasks are where they are, in groups and one by one."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from coexec.choosing.prepare import prepare
from coexec.cli.common import (
    DEFAULTS,
    CacheOpt,
    DebugOpt,
    DevicesOpt,
    EngineOpt,
    FreshOpt,
    InputsOpt,
    JsonOpt,
    ModelArg,
    OptionOpt,
    PinOpt,
    PlannerOpt,
    PlanOpt,
    ShapeOpt,
    ValueOpt,
    print_candidates,
    print_json,
    progress_bar,
    settings,
)
from coexec.cli.console import out
from coexec.cli.planned import PlatformOpt, energy_facts, energy_line, on_platform
from coexec.errors import UsageError
from coexec.plans.derive import stepwise
from coexec.profiling.sweep import measure_in_place
from coexec.timing.explain import GROUPS, Group, Reason, explain
from coexec.timing.simulate import simulate
from coexec.units import format_bytes, format_seconds
from coexec.workbench import Prepared


def command(
    model: ModelArg,
    plan: PlanOpt = None,
    devices: DevicesOpt = None,
    platform: PlatformOpt = None,
    planner: PlannerOpt = DEFAULTS.planner,
    option: OptionOpt = None,
    pin: PinOpt = None,
    top: int = 10,
    every: Annotated[bool, typer.Option("--all", help="List every task.")] = False,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    inputs: InputsOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Say why tasks are where they are: how much later the result of each, moved alone, would be
    where it is read. Groups of equal reasons first, then the longest tasks, or --all. Measured
    times are of tasks one after the other; with --platform nothing can run, and there are none.
    """
    if top < 1:
        raise UsageError(f"--top {top}: list 1 task or more")
    with progress_bar(json) as tell:
        asked = settings(
            devices=devices, planner=planner, plan=plan, option=option, shape=shape, value=value,
            inputs=inputs, cache=cache, fresh=fresh,
            progress=tell, engine=engine, pin=pin,
        )  # fmt: skip
        found = prepare(model, asked) if platform is None else (
            on_platform(model, platform, asked))  # fmt: skip
        cost, system = found.cost, found.system
    chosen, schedule = found.plan, found.schedule
    pinned = found.work.pinned_tasks(cost, system) if platform is None else ()
    reasons = explain(chosen, schedule, cost, system, pinned)
    measured = _measured(found) if platform is None else {}
    trace = simulate(schedule, cost, system)
    if json:
        rows = [asdict(r) | {"measured_s": measured.get(r.task)} for r in reasons]
        candidates = [asdict(c) for c in found.candidates]
        print_json({"candidates": candidates, "tasks": rows} | energy_facts(trace, system))
        return
    print_candidates(found.candidates)
    out.print(f"plan: {chosen.provenance.planner}, predicted "
              f"{format_seconds(trace.makespan_s)}")  # fmt: skip
    if (joules := energy_line(trace, system)) is not None:
        out.print(f"energy: {joules}, simulated")
    out.print(_groups(reasons))
    shown = reasons if every else sorted(reasons, key=lambda r: -r.predicted_s)[:top]
    out.print(_tasks([r for r in reasons if r in shown], measured))
    if len(reasons) > len(shown):
        out.print(f"the {top} longest of {len(reasons)} tasks; --all lists every one, --top N more")


def _measured(found: Prepared) -> Mapping[str, float]:
    """By task, the seconds that it takes where the plan has it, one task after the other; nothing
    for plans of parts, which cannot run as steps of their own."""
    graph, work = found.schedule.graph, found.work
    if any(piece != graph.whole_piece(graph.task[piece.task]) for piece in found.plan.device_of):
        return {}
    place_of = {piece.task: place for piece, place in found.plan.place_of.items()}
    return measure_in_place(work.compiler, stepwise(graph, place_of), work.devices)


def _groups(reasons: Sequence[Reason]) -> Table:
    """Equal reasons of a device in a row, those that take most of its time first."""
    table = Table("why", "where", "tasks", "computing", "elsewhere later by", box=None)
    found: dict[tuple[Group, str, str], list[Reason]] = {}
    for reason in reasons:
        found.setdefault((reason.group, reason.device, reason.engine), []).append(reason)
    for (group, device, engine), own in sorted(
        found.items(), key=lambda item: -sum(r.predicted_s for r in item[1])
    ):
        later_s = [r.elsewhere.end_s - r.here.end_s for r in own if r.elsewhere is not None]
        told = later_s and group not in ("even", "later")
        table.add_row(
            GROUPS[group], f"{device}/{engine}", str(len(own)),
            format_seconds(sum(r.predicted_s for r in own)),
            f"{format_seconds(statistics.median(later_s))} (median)" if told else "",
        )  # fmt: skip
    return table


def _tasks(reasons: Iterable[Reason], measured: Mapping[str, float]) -> Table:
    table = Table("task", "where", "predicted", "measured", "moved", "elsewhere", box=None)
    for reason in reasons:
        seconds = measured.get(reason.task)
        table.add_row(
            reason.task, f"{reason.device}/{reason.engine}", format_seconds(reason.predicted_s),
            "" if seconds is None else format_seconds(seconds),
            format_bytes(reason.moved_bytes) if reason.moved_bytes else "", reason.why,
        )  # fmt: skip
    return table
