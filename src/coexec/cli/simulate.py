"""`coexec simulate`: run a plan on a virtual clock."""

from typing import Annotated

import typer

from coexec.cli.options import (
    DebugOpt,
    JsonOpt,
    ModelArg,
    PlatformOpt,
    SettingOptions,
    TraceOpt,
    takes,
)
from coexec.cli.verbs import ENERGY, prints


@prints(
    simulated_s="Seconds of all requests.",
    requests="Number of requests.",
    busy_s="By device, seconds that it computed or copied.",
    **ENERGY,
)
@takes("plan", "devices", "planner", "planner_options", "shapes", "values", "examples", "cache")
def command(
    model: ModelArg,
    options: SettingOptions,
    platform: PlatformOpt = None,
    requests: Annotated[int, typer.Option(help="One behind the other.")] = 1,
    trace: TraceOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Simulate a plan, given with --plan or made now, and draw it.

    On this machine's devices, the planner auto runs what it chooses from. With --platform nothing
    can run: it takes the plan of the quick planners that simulates best.
    """
    from coexec.cli.console import out
    from coexec.cli.gantt import draw
    from coexec.cli.output import check_files, print_json, write_file
    from coexec.cli.planned import energy_facts, energy_line, prepared_on
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.timing.simulate import simulate
    from coexec.units import format_seconds

    if requests < 1:
        raise UsageError(f"--requests {requests}: simulate at least 1")
    check_files(trace)
    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        prepared = prepared_on(platform, model, config)
        system = prepared.system
    simulation = simulate(prepared.schedule, prepared.cost, system, requests)
    if trace is not None:
        write_file(trace, simulation.to_chrome(f"coexec: {prepared.graph.name}, simulated"))
    if json:
        busy = {d: simulation.busy_s(d) for d in system.names}
        facts = {"simulated_s": simulation.makespan_s, "requests": requests, "busy_s": busy}
        print_json(facts | energy_facts(simulation, system, requests))
        return
    print(draw(simulation))
    each = format_seconds(simulation.makespan_s / requests)
    out.print(
        f"simulated: {format_seconds(simulation.makespan_s)} for {requests} request(s), {each} each"
    )
    if (joules := energy_line(simulation, system, requests)) is not None:
        out.print(f"energy: {joules} each")
