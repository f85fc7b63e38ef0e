"""Plans of verbs: for this machine or a simulated phone, and the energy of any plan."""

import math
from dataclasses import replace
from typing import Any

from coexec.cli.options import SettingOptions
from coexec.cli.progress import progress
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

_QUICK = ("hope_greedy", "heft", "single")
"""Planners that "auto" tries if no plan can run."""


def energy_of(trace: Trace, system: System, requests: int = 1) -> dict[str, Any]:
    """The fields of `coexec.cli.verbs.Energy`: joules of one inference."""
    joules_by_device = device_energy_j(trace, system)
    if joules_by_device is None:
        return {"energy_j": None, "device_energy_j": None}
    each = {name: joules / requests for name, joules in joules_by_device.items()}
    return {"energy_j": math.fsum(each.values()), "device_energy_j": each}


def loaded(model: str, options: SettingOptions, platform: str | None) -> Prepared:
    """The plan that the options request, with its costs. Progress is shown.

    Raises:
        CoexecError: the plan cannot be made or used.
    """
    with progress(f"loading {model}") as tell:
        prepared = prepared_on(platform, model, options.settings(progress=tell))
        _ = prepared.system  # measures, if that has to be
    return prepared


def prepared_on(platform: str | None, model: str, settings: Settings) -> Prepared:
    """The plan that the settings request, for this machine or for a simulated platform.

    Nothing is measured on a platform, and nothing runs: for "auto", quick planners make plans, and
    the plan with the shortest simulated time is taken.

    Args:
        platform: name of the simulated platform; None: this machine.

    Raises:
        UsageError: the settings have options without a meaning on a simulated platform.
        CoexecError: the plan cannot be made or used.
    """
    if platform is None:
        return prepare(model, settings)
    if settings.fresh or settings.pins or settings.engine_options:
        raise UsageError("--platform knows no --fresh, --engine and --pin; leave them out")
    phone = load_research("platforms").load(platform, settings.devices)
    here = PlanningContext(model, replace(settings, devices=None, plan=None))
    origin = Simulated(here.user_model.published_graph, (phone.cost, phone.system), here.shapes)
    if settings.plan is not None:
        settings.plan.require(origin.graph, versions_here())
        origin.schedule(settings.plan.plan)
        return Prepared(origin, settings.plan.plan)
    tried = _QUICK if settings.planner == AUTO else (settings.planner,)
    options = settings.planner_options
    plans = [make_plan(name, options, origin.graph, phone.cost, phone.system) for name in tried]
    prepared_plans = [Prepared(origin, plan) for plan in plans]
    return min(prepared_plans, key=lambda p: simulate(p.schedule, p.cost, p.system).makespan_s)
