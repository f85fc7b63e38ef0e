"""A plan with all that it was made from: for this machine, or for a phone that is not here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from coexec.choosing.auto import Choice
from coexec.cli.common import pipeline
from coexec.costs.base import CostModel
from coexec.engines.names import split_names
from coexec.ir.graph import Graph
from coexec.plans.derive import derive
from coexec.plans.plan import Plan, verify_plan
from coexec.plans.schedule import Schedule
from coexec.platforms import ENGINE, NAMES, load
from coexec.system.hardware import System
from coexec.timing.simulate import simulate
from coexec.workbench import make_plan

__all__ = ["Planned", "PlatformOpt", "on_platform", "on_this_machine"]

PlatformOpt = Annotated[
    str | None, typer.Option(help=f"Simulate this instead of the machine: {', '.join(NAMES)}.")
]

_QUICK = ("hope_greedy", "heft", "single")
"""What "auto" tries where nothing can be run."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan, its graph, costs and system, and what follows from it."""

    graph: Graph
    cost: CostModel
    system: System
    plan: Plan
    schedule: Schedule

    def alone_s(self, device: str) -> float:
        """Seconds of all tasks, one after the other, on one device."""
        cost, graph = self.cost, self.graph
        place = self.system.device[device].places[0]
        wholes = ((task, graph.output_of(task).whole) for task in graph.tasks)
        return math.fsum(cost.piece_s(graph, task, whole, place) for task, whole in wholes)


def on_this_machine(choice: Choice) -> Planned:
    """What was measured here."""
    cost, system = choice.work.measured
    schedule = choice.work.schedule(choice.plan)
    return Planned(choice.work.model.graph, cost, system, choice.plan, schedule)


def on_platform(
    model: str,
    platform: str,
    devices: str | None,
    planner: str,
    options: Mapping[str, Any],
    shape: Sequence[str] | None = None,
    cache: Path | None = None,
    given: Plan | None = None,
) -> Planned:
    """The plan that is given, or else a new one, on a simulated platform.

    Nothing is measured and nothing runs: "auto" keeps the quick planner's plan that simulates best.
    """
    # A plan names its devices with their engine, of which these have one.
    listed = None if devices is None else split_names(devices)
    phone = load(platform, listed and [name.removesuffix(f"/{ENGINE}") for name in listed])
    graph = pipeline(model, None, shape, cache).published_graph
    if given is not None:
        verify_plan(given, graph, phone.system)
        plans = [given]
    else:
        tried = _QUICK if planner == "auto" else (planner,)
        plans = [make_plan(name, options, graph, phone.cost, phone.system) for name in tried]
    found = [Planned(graph, phone.cost, phone.system, p, derive(p, graph)) for p in plans]
    return min(found, key=lambda p: simulate(p.schedule, p.cost, p.system).makespan_s)
