"""What machines and links can do, measured on themselves: capacities by a sample of the model's own
tasks, bandwidths by messages of two sizes."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

from coexec.cluster.build import build
from coexec.cluster.handles import MachineFacts, MachineHandle
from coexec.cluster.shares import ShareModel, ShareModels
from coexec.cluster.team import Member
from coexec.costs.capacity import FLOPS_PER_MAC
from coexec.errors import DeviceError
from coexec.ir.graph import Graph
from coexec.ir.strip import Strip

__all__ = ["measure_link", "measured_members", "sample"]

_SAMPLE_MACS = 200_000_000
"""Of the tasks that a capacity is told from."""
_REPEATS = 5
_MESSAGES = (((20_000, 100_000), 1), ((200_000, 1_000_000), _REPEATS))
"""Bytes of two messages, the difference of whose times is that of the bytes between, and how often
they are sent; the second two where the first two are too quick to tell."""
_EMPTY_BYTES = 64
_PLAIN_S = 0.05
"""A difference that no disturbance makes."""
_FASTEST = 1e10
"""Bytes a second: what is taken where two messages differ by less than can be measured."""
_ALONE = 12.5e6
"""Bytes a second of a single machine's port, which nothing crosses: a network of 100 Mbit/s."""
_SPEED, _LATENCY = "bandwidth_bytes_per_s", "latency_s"
"""What is stated of a port, by name."""


class _Port(NamedTuple):
    bytes_per_s: float
    latency_s: float


async def measured_members(
    handles: Mapping[str, MachineHandle],
    graph: Graph,
    models: ShareModels,
    stated: Callable[[MachineFacts], Mapping[str, float]],
    others: Mapping[str, Member],
) -> list[Member]:
    """What new machines can do.

    Machines of one host are measured one after the other.

    Args:
        stated: what is known of a machine and need not be measured.
        others: machines of before; links are measured with these, too.

    Raises:
        DeviceError: one runs another coexec.
        MachineLostError: one was lost meanwhile.
    """
    facts: list[MachineFacts] = await asyncio.gather(*(h.call("facts") for h in handles.values()))
    for each in facts:
        if each.build != build():
            raise DeviceError(
                f"machine {each.name} has coexec {each.build}, this one {build()}; install the "
                f"same on all"
            )
    probe = models.of(sample(graph))
    by_host: dict[str, list[MachineFacts]] = {}
    for each in facts:
        by_host.setdefault(each.host, []).append(each)

    async def speeds(hosted: list[MachineFacts]) -> dict[str, float]:
        return {each.name: await _flops_per_s(handles[each.name], probe, stated(each))
                for each in hosted}  # fmt: skip

    found: dict[str, float] = {}
    for part in await asyncio.gather(*map(speeds, by_host.values())):
        found |= part
    ports = await _ports(facts, handles, stated, others)
    return [Member(f.name, handles[f.name], f, found[f.name], *ports[f.name]) for f in facts]


def sample(graph: Graph) -> Strip:
    """Some whole tasks of a model, spread over it, each by itself: enough to tell how fast a
    machine computes models like it."""
    heavy = [task for task in graph.tasks if task.macs]
    tasks = heavy or list(graph.tasks)
    count = max(1, min(len(tasks), len(tasks) * _SAMPLE_MACS // max(1, graph.macs)))
    chosen = [tasks[(2 * index + 1) * len(tasks) // (2 * count)] for index in range(count)]
    reads: dict[str, Any] = {}
    writes: dict[str, Any] = {}
    for task in chosen:
        reads |= {name: graph.tensors[name].whole for name in task.inputs}
        writes |= {name: graph.tensors[name].whole for name in task.outputs}
    own = {name: region for name, region in reads.items() if name not in writes}
    macs = sum(task.macs for task in chosen)
    pieces = tuple(graph.whole_piece(task) for task in chosen)
    return Strip(pieces, tuple(own.items()), tuple(writes.items()), macs)


async def _flops_per_s(
    handle: MachineHandle, probe: ShareModel, stated: Mapping[str, float]
) -> float:
    if "flops_per_s" in stated:
        return stated["flops_per_s"]
    seconds: float = await handle.call("measure", probe, _REPEATS)
    return FLOPS_PER_MAC * max(1, probe.macs) / seconds


async def _ports(
    facts: list[MachineFacts],
    handles: Mapping[str, MachineHandle],
    stated: Callable[[MachineFacts], Mapping[str, float]],
    others: Mapping[str, Member],
) -> dict[str, _Port]:
    """By new machine, its port: the most that a link to a neighbour carries, all machines in a
    ring, and the least latency."""
    known = {f.name: stated(f) for f in facts}
    unknown = {name for name, port in known.items() if not port.keys() >= {_SPEED, _LATENCY}}
    slow = {name for name in unknown if _SPEED not in known[name]}
    everyone = {name: member.handle for name, member in others.items()} | dict(handles)
    names = list(everyone)
    links: dict[str, list[_Port]] = {name: [] for name in known}
    for a, b in zip(names, (*names[1:], names[0]), strict=True):
        if a == b or not unknown & {a, b}:
            continue
        latency_s = await _latency_s(everyone[a], everyone[b])
        speed = await _bytes_per_s(everyone[a], everyone[b]) if slow & {a, b} else _FASTEST
        for name in unknown & {a, b}:
            links[name].append(_Port(speed, latency_s))
    return {
        name: _Port(
            known[name].get(_SPEED, max((port.bytes_per_s for port in found), default=_ALONE)),
            known[name].get(_LATENCY, min((port.latency_s for port in found), default=0.0)),
        )
        for name, found in links.items()
    }


async def measure_link(source: Member, target: Member, others: Iterable[Member]) -> None:
    """Note what both ports of a link carry now: the one sends, the other receives. Each is measured
    with another machine too, if there is one, to tell which of both is slow.

    Raises:
        MachineLostError: one was lost meanwhile.
    """
    between = await _port(source.handle, target.handle)
    sends = receives = [between]
    for other in [*others][:1]:
        sends = [between, await _port(source.handle, other.handle)]
        receives = [between, await _port(other.handle, target.handle)]
    for member, ports in ((source, sends), (target, receives)):
        best = max(ports, key=lambda port: port.bytes_per_s)
        member.bandwidth_bytes_per_s, member.latency_s = best


async def _port(source: MachineHandle, target: MachineHandle) -> _Port:
    return _Port(await _bytes_per_s(source, target), await _latency_s(source, target))


async def _latency_s(source: MachineHandle, target: MachineHandle) -> float:
    """From messages of hardly any bytes."""
    seconds: list[float] = await source.call("measure_link", target, _EMPTY_BYTES, _REPEATS)
    return median(seconds)


async def _bytes_per_s(source: MachineHandle, target: MachineHandle) -> float:
    """From messages of two sizes, by the difference quotient, as in PICO."""
    small_s, large_s, small, large = 0.0, 0.0, 0, 0
    for (small, large), repeats in _MESSAGES:
        small_s = median(await source.call("measure_link", target, small, repeats))
        large_s = median(await source.call("measure_link", target, large, repeats))
        if large_s - small_s > _PLAIN_S:
            break
    return min(_FASTEST, (large - small) / max(large_s - small_s, 1e-9))
