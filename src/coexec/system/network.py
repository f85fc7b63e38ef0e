"""Systems of several machines: each is one device of a `System`, its network the links.

A machine's own devices are no concern of a pipeline plan: it takes shares as a whole, and plans
each over its devices. Its memory is that of its only engine here.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Literal

from coexec.system.hardware import Device, EngineInfo, Link, Power, System

__all__ = ["Network", "connected", "machine"]

Network = Literal["ports", "half-duplex ports", "shared"]
"""What can carry one message at a time: each direction of each machine's port, each port, or one
medium that all machines share, as Wi-Fi is."""


def machine(name: str, memory_bytes: int | None = None, power: Power | None = None) -> Device:
    """A machine as one device of a system, on a host of its own name."""
    engine = EngineInfo("session", memory_bytes=memory_bytes)
    return Device(name, "machine", (engine,), host=name, power=power)


def connected(
    machines: Sequence[Device],
    bandwidth_bytes_per_s: float | Mapping[str, float],
    network: Network = "ports",
    latency_s: float = 0.0,
) -> System:
    """Machines that reach each other.

    Args:
        bandwidth_bytes_per_s: of every link, or by machine that of its port: a link has that of the
            slower one.
        latency_s: from the end of sending to arrival; keeps nothing occupied.
    """
    links = [
        Link(a, b, latency_s, _between(bandwidth_bytes_per_s, a, b), "none",
             media=_media(network, a, b))
        for a, b in permutations([m.name for m in machines], 2)
    ]  # fmt: skip
    return System(tuple(machines), tuple(links))


def _between(bandwidth: float | Mapping[str, float], source: str, target: str) -> float:
    if isinstance(bandwidth, Mapping):
        return min(bandwidth[source], bandwidth[target])
    return bandwidth


def _media(network: Network, source: str, target: str) -> tuple[str, ...]:
    if network == "shared":
        return ("shared medium",)
    if network == "ports":
        return f"{source} sends", f"{target} receives"
    return f"{source}'s port", f"{target}'s port"
