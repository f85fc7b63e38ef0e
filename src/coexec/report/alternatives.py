"""Other plans for the same costs: by each planner, and without one of the devices. Simulated."""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from coexec.costs.base import CostModel
from coexec.costs.pinned import Pinned, resolve
from coexec.errors import CoexecError, first_line
from coexec.hardware.hardware import System
from coexec.planners import PLANNERS
from coexec.report.contents import Alternative
from coexec.selection.planning_context import make_plan
from coexec.selection.prepared import Prepared, Simulated
from coexec.timing.simulate import simulate

__all__ = ["alone_s", "by_planners", "without_devices"]

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


def without_devices(prepared: Prepared, limit_s: float) -> Iterator[Alternative]:
    """For each device that the plan uses, a plan of the same planner without it. Pins to the
    device do not count.

    Args:
        limit_s: seconds for all plans; later ones are left out with the reason.
    """
    used, planner = prepared.plan.used, prepared.plan.provenance.planner
    if len(used) < 2:
        return
    deadline_s = time.monotonic() + limit_s
    for index, name in enumerate(used):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            yield Alternative(name, None, status="not tried: no time was left")
            continue
        others = [device.name for device in prepared.system.devices if device.name != name]
        chosen = planner if len(others) > 1 and planner in PLANNERS else "single"
        options = _limited(chosen, left_s / (len(used) - index))
        yield _planned(name, chosen, options, _system_of(prepared.system, others), prepared)


def alone_s(prepared: Prepared, device: str) -> float | None:
    """Seconds of the plan of one device, simulated; None if the device cannot run the model."""
    system = _system_of(prepared.system, [device])
    return _planned(device, "single", {}, system, prepared).predicted_s


def _system_of(system: System, names: Collection[str]) -> System:
    """The part of a system with some of its devices and the links between these."""
    devices = tuple(device for device in system.devices if device.name in names)
    links = tuple(
        link for link in system.links if {link.source.device, link.target.device} <= {*names}
    )
    return replace(system, devices=devices, links=links)


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
    """The costs for planners, with the pins of the user to devices of ``system``."""
    if isinstance(prepared.origin, Simulated):
        return prepared.cost
    known = {name for place in system.places for name in (place.device, str(place))}
    pins = {task: name for task, name in prepared.work.settings.pins.items() if name in known}
    return Pinned(prepared.cost, resolve(pins, prepared.graph, prepared.cost, system))
