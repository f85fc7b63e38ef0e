"""Plans for phones that are not here, and what both kinds of plans are asked for."""

import math
from typing import Annotated

import typer

from coexec.errors import UsageError
from coexec.plans.plan import Plan
from coexec.platforms import ENGINE, NAMES, load
from coexec.timing.simulate import simulate
from coexec.workbench import AUTO, Prepared, Settings, Simulated, Workbench, make_plan

__all__ = ["PlatformOpt", "alone_s", "on_platform"]

PlatformOpt = Annotated[
    str | None, typer.Option(help=f"Simulate this instead of the machine: {', '.join(NAMES)}.")
]

_QUICK = ("hope_greedy", "heft", "single")
"""What "auto" tries where nothing can be run."""


def alone_s(prepared: Prepared, device: str) -> float:
    """Seconds of all tasks, one after the other, on one device with its first engine."""
    graph, cost = prepared.graph, prepared.cost
    place = prepared.system.device[device].places[0]
    wholes = ((task, graph.output_of(task).whole) for task in graph.tasks)
    return math.fsum(cost.piece_s(graph, task, whole, place) for task, whole in wholes)


def on_platform(
    model: str, platform: str, settings: Settings, given: Plan | None = None
) -> Prepared:
    """The plan that is given, or else a new one, on a simulated platform.

    Nothing is measured and nothing runs: "auto" keeps the quick planner's plan that simulates best.

    Raises:
        UsageError: settings that mean nothing there.
    """
    if settings.fresh or settings.pins or settings.engine_options:
        raise UsageError("--platform knows no --fresh, --engine and --pin; leave them out")
    # A plan names its devices with their engine, of which these have one.
    listed = settings.devices
    phone = load(platform, listed and [name.removesuffix(f"/{ENGINE}") for name in listed])
    here = Settings(shapes=settings.shapes, values=settings.values, cache=settings.cache)
    origin = Simulated(Workbench(model, here).given.published_graph, (phone.cost, phone.system))
    if given is not None:
        origin.schedule(given)
        return Prepared(origin, given)
    tried = _QUICK if settings.planner == AUTO else (settings.planner,)
    options = settings.planner_options
    plans = [make_plan(name, options, origin.graph, phone.cost, phone.system) for name in tried]
    found = [Prepared(origin, plan) for plan in plans]
    return min(found, key=lambda p: simulate(p.schedule, p.cost, p.system).makespan_s)
