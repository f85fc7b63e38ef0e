"""Plans for simulated phones, and the energy of any plan."""

import math
from dataclasses import replace
from typing import Any

from coexec.errors import UsageError
from coexec.hardware.hardware import System
from coexec.research_loader import load_research
from coexec.selection.plan_files import versions_here
from coexec.selection.planning_context import PlanningContext, make_plan
from coexec.selection.prepare import prepare
from coexec.selection.prepared import Prepared, Simulated
from coexec.settings import AUTO, Settings
from coexec.timing.energy import device_energy_j
from coexec.timing.simulate import simulate
from coexec.timing.trace import Trace
from coexec.units import format_joules

__all__ = ["energy_facts", "energy_line", "prepared_on"]

_QUICK = ("hope_greedy", "heft", "single")
"""Planners that "auto" tries if no plan can run."""


def energy_facts(trace: Trace, system: System, requests: int = 1) -> dict[str, Any]:
    """Joules of one inference for the JSON document, of all devices and of each; None if the watts
    of a device are unknown."""
    joules_by_device = device_energy_j(trace, system)
    if joules_by_device is None:
        return {"energy_j": None, "device_energy_j": None}
    each = {name: joules / requests for name, joules in joules_by_device.items()}
    return {"energy_j": math.fsum(each.values()), "device_energy_j": each}


def energy_line(trace: Trace, system: System, requests: int = 1) -> str | None:
    """`energy_facts` as text: "1.92 J (cpu:4-7 1.20 J, gpu:0 720 mJ)"; None if unknown."""
    facts = energy_facts(trace, system, requests)
    if facts["energy_j"] is None:
        return None
    each = (f"{name} {format_joules(joules)}" for name, joules in facts["device_energy_j"].items())
    return f"{format_joules(facts['energy_j'])} ({', '.join(each)})"


def prepared_on(platform: str | None, model: str, settings: Settings) -> Prepared:
    """The plan that the settings request, for this machine or for a simulated platform.

    Args:
        platform: name of the simulated platform; None: this machine.

    Raises:
        CoexecError: the plan cannot be made or used.
    """
    if platform is None:
        return prepare(model, settings)
    return _simulated_on(platform, model, settings)


def _simulated_on(platform: str, model: str, settings: Settings) -> Prepared:
    """The plan in the settings, or else a new plan, on a simulated platform.

    Nothing is measured and nothing runs: for "auto", quick planners make plans, and the plan with
    the shortest simulated time is taken.

    Raises:
        UsageError: the settings have options without a meaning on a simulated platform.
    """
    if settings.fresh or settings.pins or settings.engine_options:
        raise UsageError("--platform knows no --fresh, --engine and --pin; leave them out")
    phone = load_research("platforms").load(platform, settings.devices)
    here = PlanningContext(model, replace(settings, devices=None, plan=None))
    origin = Simulated(here.given.published_graph, (phone.cost, phone.system), here.shapes)
    if settings.plan is not None:
        settings.plan.require(origin.graph, versions_here())
        origin.schedule(settings.plan.plan)
        return Prepared(origin, settings.plan.plan)
    tried = _QUICK if settings.planner == AUTO else (settings.planner,)
    options = settings.planner_options
    plans = [make_plan(name, options, origin.graph, phone.cost, phone.system) for name in tried]
    prepared_plans = [Prepared(origin, plan) for plan in plans]
    return min(prepared_plans, key=lambda p: simulate(p.schedule, p.cost, p.system).makespan_s)
