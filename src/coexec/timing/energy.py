"""Energy of a trace in joules, from the watts that each device draws when busy and when idle."""

from collections.abc import Mapping

from coexec.hardware.hardware import System
from coexec.timing.trace import Trace


def device_energy_j(trace: Trace, system: System) -> Mapping[str, float] | None:
    """Joules of each device from second 0 to the end of the trace, for all requests together.

    A device draws ``busy_w`` while it computes or copies, and ``idle_w`` the rest of the time. A
    device that the plan does not use is idle all the time. This holds for simulated and for
    executed traces.

    Returns:
        Joules by name of the device, or None if the watts of a device are unknown.
    """
    joules: dict[str, float] = {}
    for device in system.devices:
        if device.power is None:
            return None
        busy_s = trace.busy_s(device.name)
        idle_s = max(0.0, trace.makespan_s - busy_s)
        joules[device.name] = busy_s * device.power.busy_w + idle_s * device.power.idle_w
    return joules
