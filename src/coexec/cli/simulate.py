"""`coexec simulate`: run a plan on a virtual clock."""

from coexec.cli.common import (
    CacheOpt,
    DebugOpt,
    DevicesOpt,
    JsonOpt,
    ModelArg,
    OptionOpt,
    PlannerOpt,
    PlanOpt,
    ShapeOpt,
    TraceOpt,
    ValueOpt,
    given_plan,
    out,
    print_json,
    progress_bar,
    settings,
    write_file,
)
from coexec.cli.gantt import draw
from coexec.cli.planned import PlatformOpt, on_platform
from coexec.costs.base import CostModel
from coexec.errors import UsageError
from coexec.timing.simulate import simulate
from coexec.units import format_seconds
from coexec.workbench import Workbench, make_plan


def command(
    model: ModelArg,
    plan: PlanOpt = None,
    devices: DevicesOpt = None,
    platform: PlatformOpt = None,
    planner: PlannerOpt = "hope_greedy",
    option: OptionOpt = None,
    requests: int = 1,
    trace: TraceOpt = None,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Simulate a plan, given with --plan or made now, and draw it."""
    if requests < 1:
        raise UsageError(f"--requests {requests}: simulate at least 1")
    given, devices = given_plan(plan, devices)
    cost: CostModel
    if platform is not None:
        asked = settings(
            devices=devices, planner=planner, option=option, shape=shape, value=value, cache=cache
        )
        there = on_platform(model, platform, asked, given)
        cost, system, schedule = there.cost, there.system, there.schedule
    else:
        with progress_bar(json) as tell:
            asked = settings(
                devices=devices, planner=planner, option=option, shape=shape, value=value,
                cache=cache,
                progress=tell,
            )  # fmt: skip
            work = Workbench(model, asked)
            cost, system = work.measured
        if given is None:
            given = make_plan(planner, asked.planner_options, work.graph, cost, system)
        schedule = work.schedule(given)
    found = simulate(schedule, cost, system, requests)
    if trace is not None:
        write_file(trace, found.to_chrome())
    if json:
        busy = {d: found.busy_s(d) for d in system.names}
        print_json({"simulated_s": found.makespan_s, "requests": requests, "busy_s": busy})
        return
    print(draw(found))
    each = format_seconds(found.makespan_s / requests)
    out.print(f"simulated: {format_seconds(found.makespan_s)} for {requests} request(s), "
              f"{each} each")  # fmt: skip
