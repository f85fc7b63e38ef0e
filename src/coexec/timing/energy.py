"""Joules of a trace, from what each device draws busy and idle."""

import math
from collections.abc import Mapping

from coexec.system.hardware import System
from coexec.timing.trace import Trace

__all__ = ["device_energy_j", "energy_j"]


def device_energy_j(trace: Trace, system: System) -> Mapping[str, float] | None:
    """Joules of each device from second 0 to the end of the trace, of all its requests together.

    A device draws ``busy_w`` while it computes or copies and ``idle_w`` for the rest, also one that
    the plan leaves out: it is there and waits. Holds for simulated and executed traces alike.

    Returns:
        By name of a device, or None if the watts of one are not known.
    """
    found: dict[str, float] = {}
    for device in system.devices:
        if device.power is None:
            return None
        busy_s = trace.busy_s(device.name)
        idle_s = max(0.0, trace.makespan_s - busy_s)
        found[device.name] = busy_s * device.power.busy_w + idle_s * device.power.idle_w
    return found


def energy_j(trace: Trace, system: System) -> float | None:
    """The sum of `device_energy_j`, or None if the watts of a device are not known."""
    found = device_energy_j(trace, system)
    return None if found is None else math.fsum(found.values())
