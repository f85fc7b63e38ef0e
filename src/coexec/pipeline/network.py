"""Systems of several machines: each machine is one device of a `System`, the network its links.

A pipeline plan does not contain the devices inside a machine: a machine takes a share as a whole
and plans it over its own devices. The memory of a machine is the memory of its only engine here.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Literal

from coexec.hardware.hardware import Device, EngineInfo, Link, Power, System

NetworkKind = Literal["ports", "half-duplex ports", "shared"]
"""The resource that carries one message at a time: each direction of each machine's port, each
port, or one medium that all machines share, such as Wi-Fi."""


def machine(name: str, memory_bytes: int | None = None, power: Power | None = None) -> Device:
    """A machine as one device of a system, on a host of the same name."""
    engine = EngineInfo("session", memory_bytes=memory_bytes)
    return Device(name, "machine", engine, host=name, power=power)


def connected(
    machines: Sequence[Device],
    bandwidth_bytes_per_s: float | Mapping[str, float],
    network: NetworkKind = "ports",
    latency_s: float = 0.0,
) -> System:
    """A system of machines with a link between each two of them.

    Args:
        bandwidth_bytes_per_s: of every link, or by machine the bandwidth of its port: a link has
            the bandwidth of the slower port.
        latency_s: from the end of sending to arrival; occupies nothing.
    """
    links = [
        Link(
            a.place,
            b.place,
            latency_s,
            _between(bandwidth_bytes_per_s, a.name, b.name),
            "none",
            media=_media(network, a.name, b.name),
        )
        for a, b in permutations(machines, 2)
    ]
    return System(tuple(machines), tuple(links))


def _between(bandwidth: float | Mapping[str, float], source: str, target: str) -> float:
    if isinstance(bandwidth, Mapping):
        return min(bandwidth[source], bandwidth[target])
    return bandwidth


def _media(network: NetworkKind, source: str, target: str) -> tuple[str, ...]:
    if network == "shared":
        return ("shared medium",)
    if network == "ports":
        return f"{source} sends", f"{target} receives"
    return f"{source}'s port", f"{target}'s port"
