"""Other plans for the same costs: by each planner, and without one of the devices. Simulated."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coexec.costs.base import CostModel
from coexec.costs.pinned import Pinned, resolve
from coexec.errors import CoexecError, first_line
from coexec.hardware.hardware import Place, System
from coexec.planners import PLANNERS
from coexec.selection.planning_context import make_plan
from coexec.selection.prepared import Prepared, Simulated
from coexec.timing.simulate import simulate

_LAST = ("codl", "anneal", "cpsat", "hope_ilp", "exhaustive")
"""The planners that take longest, in this order behind all others."""


@dataclass(frozen=True)
class Alternative:
    """Another plan, simulated with the same costs: by another planner, or without a device."""

    name: str
    predicted_s: float | None
    planning_s: float | None = None
    status: str = ""
    """How the planner ended, or why there is no plan."""


def by_planners(prepared: Prepared, limit_s: float) -> Iterator[Alternative]:
    """A plan of each planner; none for a single device, where all plans are alike.

    Args:
        limit_s: seconds for all planners; those that search get what is left, and later ones are
            left out with the reason.
    """
    system = prepared.system
    names = sorted(PLANNERS, key=lambda name: _LAST.index(name) if name in _LAST else -1)

    def plan(name: str, left_s: float) -> Alternative:
        return _planned(name, name, left_s, system, prepared)

    return _within(limit_s, names if len(system.places) > 1 else (), plan)


def without_devices(prepared: Prepared, limit_s: float) -> Iterator[Alternative]:
    """For each device that the plan uses, a plan of the same planner without it. Pins to the
    device do not count.

    Args:
        limit_s: seconds for all plans; later ones are left out with the reason.
    """
    used, planner = prepared.plan.used, prepared.plan.provenance.planner

    def plan(name: str, left_s: float) -> Alternative:
        others = [place for place in prepared.system.places if place.device != name]
        chosen = planner if len(others) > 1 and planner in PLANNERS else "single"
        share_s = left_s / (len(used) - used.index(name))
        return _planned(name, chosen, share_s, _system_of(prepared.system, others), prepared)

    return _within(limit_s, used if len(used) > 1 else (), plan)


def alone_s(prepared: Prepared, place: Place) -> float | None:
    """Seconds of the plan of one device, simulated; None if the device cannot run the model."""
    system = _system_of(prepared.system, [place])
    return _planned(str(place), "single", 0.0, system, prepared).predicted_s


def _within(
    limit_s: float, names: Sequence[str], plan: Callable[[str, float], Alternative]
) -> Iterator[Alternative]:
    """A plan for each name, by ``plan`` of the name and the seconds that are left."""
    deadline_s = time.monotonic() + limit_s
    for name in names:
        left_s = deadline_s - time.monotonic()
        if left_s > 0:
            yield plan(name, left_s)
        else:
            yield Alternative(name, None, status="not tried: no time was left")


def _system_of(system: System, places: Collection[Place]) -> System:
    """The part of a system with some of its devices and the links between these."""
    devices = tuple(device for device in system.devices if device.place in places)
    links = tuple(link for link in system.links if {link.source, link.target} <= {*places})
    return replace(system, devices=devices, links=links)


def _planned(
    name: str, planner: str, left_s: float, system: System, prepared: Prepared
) -> Alternative:
    """A plan; planners that search end after about ``left_s`` seconds."""
    is_search = planner in ("cpsat", "hope_ilp")
    options: Mapping[str, Any] = {"time_limit_s": left_s / 2} if is_search else {}
    start_s = time.perf_counter()
    try:
        plan = make_plan(planner, options, prepared.graph, _pinned(prepared, system), system)
        schedule = prepared.origin.schedule(plan)
        predicted_s = simulate(schedule, prepared.cost, system).makespan_s
    except CoexecError as error:
        return Alternative(name, None, status=first_line(error))
    return Alternative(name, predicted_s, time.perf_counter() - start_s, plan.provenance.status)


def _pinned(prepared: Prepared, system: System) -> CostModel:
    """The costs for planners, with the pins of the user to devices of ``system``."""
    if isinstance(prepared.origin, Simulated):
        return prepared.cost
    known = {name for place in system.places for name in (place.device, str(place))}
    pins = {task: name for task, name in prepared.work.settings.pins.items() if name in known}
    return Pinned(prepared.cost, resolve(pins, prepared.graph, prepared.cost, system))
