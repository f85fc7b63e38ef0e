"""Other plans for the same costs: by each planner, and without one of the devices. Simulated."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from coexec.costs.base import CostModel
from coexec.errors import CoexecError, first_line
from coexec.hardware.hardware import System
from coexec.planners import PLANNERS
from coexec.report.contents import Alternative
from coexec.selection.planning_context import make_plan
from coexec.selection.prepared import Prepared, Simulated
from coexec.timing.simulate import simulate

__all__ = ["by_planners", "without_devices"]

_ORDER = ("single", "heft", "hope_greedy", "dmdar", "mosaic", "mulayer", "codl", "anneal",
          "cpsat", "hope_ilp", "exhaustive")  # fmt: skip
"""The planners, those that take a moment first."""


def by_planners(prepared: Prepared, limit_s: float) -> Iterator[Alternative]:
    """A plan of each planner; none for a single device, where all plans are alike.

    Args:
        limit_s: seconds for all planners; those that search get what is left, and later ones are
            left out with the reason.
    """
    system = prepared.system
    if len(system.places) < 2:
        return
    deadline_s = time.monotonic() + limit_s
    for name in sorted(PLANNERS, key=lambda n: _ORDER.index(n) if n in _ORDER else len(_ORDER)):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            yield Alternative(name, None, status="not tried: no time was left")
            continue
        yield _planned(name, name, _limited(name, left_s), system, prepared)


def without_devices(prepared: Prepared) -> Iterator[Alternative]:
    """For each device that the plan uses, a plan of the same planner without it."""
    used, planner = prepared.plan.used, prepared.plan.provenance.planner
    if len(used) < 2:
        return
    for name in used:
        left = [device for device in prepared.system.devices if device.name != name]
        links = [link for link in prepared.system.links if name not in (link.source, link.target)]
        system = replace(prepared.system, devices=tuple(left), links=tuple(links))
        chosen = planner if len(left) > 1 and planner in PLANNERS else "single"
        yield _planned(name, chosen, {}, system, prepared)


def _limited(name: str, left_s: float) -> Mapping[str, Any]:
    """Options that end a search after about ``left_s`` seconds."""
    return {"time_limit_s": left_s / 2} if name in ("cpsat", "hope_ilp") else {}


def _planned(
    name: str, planner: str, options: Mapping[str, Any], system: System, prepared: Prepared
) -> Alternative:
    start_s = time.perf_counter()
    try:
        plan = make_plan(planner, options, prepared.graph, _pinned(prepared, system), system)
        schedule = prepared.origin.schedule(plan)
        predicted_s = simulate(schedule, prepared.cost, system).makespan_s
    except CoexecError as error:
        return Alternative(name, None, status=first_line(error))
    return Alternative(name, predicted_s, time.perf_counter() - start_s, plan.provenance.status)


def _pinned(prepared: Prepared, system: System) -> CostModel:
    """The costs for planners, with the pins of the user."""
    if isinstance(prepared.origin, Simulated):
        return prepared.cost
    return prepared.work.pinned(prepared.work.measured[0], system)
