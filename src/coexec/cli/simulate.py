"""`coexec simulate`: run a plan on a virtual clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from coexec.cli.options import ModelArg, PlatformOpt, SettingOptions, TraceOpt, verb
from coexec.cli.verbs import Energy, VerbOutput


@dataclass(frozen=True)
class Simulation(Energy):
    """A plan that was simulated."""

    simulated_s: float
    """Seconds of all requests."""
    requests: int
    """Number of requests."""
    busy_s: Mapping[str, float]
    """By device, seconds that it computed or copied."""


@verb(
    Simulation,
    *("plan", "devices", "planner", "planner_options", "shapes", "values", "examples", "cache"),
)
def command(
    model: ModelArg,
    options: SettingOptions,
    platform: PlatformOpt = None,
    requests: Annotated[int, typer.Option(help="One behind the other.")] = 1,
    trace: TraceOpt = None,
) -> VerbOutput:
    """Simulate a plan, given with --plan or made now, and draw it.

    On this machine's devices, the planner auto runs what it chooses from. With --platform nothing
    can run: it takes the plan of the quick planners that simulates best.
    """
    from coexec.cli.gantt import draw
    from coexec.cli.output import check_files, write_file
    from coexec.cli.planned import energy_of, loaded
    from coexec.errors import UsageError
    from coexec.timing.simulate import simulate
    from coexec.units import format_seconds

    if requests < 1:
        raise UsageError(f"--requests {requests}: simulate at least 1")
    check_files(trace)
    prepared = loaded(model, options, platform)
    system = prepared.system
    simulated = simulate(prepared.schedule, prepared.cost, system, requests)
    if trace is not None:
        write_file(trace, simulated.to_chrome(f"coexec: {prepared.graph.name}, simulated"))
    seconds = simulated.makespan_s
    busy_s = {name: simulated.busy_s(name) for name in system.names}
    result = Simulation(seconds, requests, busy_s, **energy_of(simulated, system, requests))
    lines = [
        draw(simulated),
        f"simulated: {format_seconds(seconds)} for {requests} request(s), "
        f"{format_seconds(seconds / requests)} each",
    ]
    return VerbOutput(result, [*lines, *([f"energy: {result.energy}"] if result.energy else [])])
