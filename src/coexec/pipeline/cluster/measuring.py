"""Measure machines and links: capacities by a sample of the model's own tasks, bandwidths by
messages of two sizes."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

from coexec.costs.capacity import FLOPS_PER_MAC
from coexec.errors import DeviceError
from coexec.graph.graph import Graph
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.handles import MachineFacts, MachineHandle
from coexec.pipeline.cluster.shares import ShareModel, ShareModels
from coexec.pipeline.cluster.team import Member
from coexec.pipeline.strip import Strip

_SAMPLE_MACS = 200_000_000
"""Multiply-accumulates of the tasks that measure a capacity."""
_REPEATS = 5
_MESSAGES = (((20_000, 100_000), 1), ((200_000, 1_000_000), _REPEATS))
"""Sizes of two messages in bytes, and how often they are sent. The difference of their times is the
transfer time of the difference in bytes. The second pair is sent only if the first is too fast to
measure."""
_EMPTY_BYTES = 64
_PLAIN_S = 0.05
"""Difference in seconds that is larger than any disturbance."""
_FASTEST = 1e10
"""Bytes a second of a link whose two messages differ by less than can be measured."""
_ALONE = 12.5e6
"""Bytes a second of a single machine's port, which no message uses: a network of 100 Mbit/s."""
_SPEED, _LATENCY = "bandwidth_bytes_per_s", "latency_s"
"""Names of the stated properties of a port."""


class _Port(NamedTuple):
    bytes_per_s: float
    latency_s: float


async def measured_members(
    handles: Mapping[str, MachineHandle],
    graph: Graph,
    models: ShareModels,
    stated: Callable[[MachineFacts], Mapping[str, float]],
    members: Mapping[str, Member],
) -> list[Member]:
    """New machines as members, with their measured capacities and ports.

    Machines of one host are measured one after the other.

    Args:
        stated: stated properties of a machine, which are not measured.
        members: present members; the links to these are measured, too.

    Raises:
        DeviceError: a machine runs another version of coexec.
        MachineLostError: a machine was lost meanwhile.
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
        return {
            each.name: await _flops_per_s(handles[each.name], probe, stated(each))
            for each in hosted
        }

    flops_by_name: dict[str, float] = {}
    for part in await asyncio.gather(*map(speeds, by_host.values())):
        flops_by_name |= part
    ports = await _ports(facts, handles, stated, members)
    return [
        Member(f.name, handles[f.name], f, flops_by_name[f.name], *ports[f.name]) for f in facts
    ]


def sample(graph: Graph) -> Strip:
    """A strip of some whole tasks, spread evenly over a model, to measure how fast a machine
    computes such models."""
    heavy = [task for task in graph.tasks if task.macs]
    tasks = heavy or list(graph.tasks)
    count = max(1, min(len(tasks), len(tasks) * _SAMPLE_MACS // max(1, graph.macs)))
    chosen = [tasks[(2 * index + 1) * len(tasks) // (2 * count)] for index in range(count)]
    reads: dict[str, Any] = {}
    writes: dict[str, Any] = {}
    for task in chosen:
        reads |= {name: graph.tensors[name].whole for name in task.inputs}
        writes |= {name: graph.tensors[name].whole for name in task.outputs}
    inputs = {name: region for name, region in reads.items() if name not in writes}
    macs = sum(task.macs for task in chosen)
    pieces = tuple(graph.whole_piece(task) for task in chosen)
    return Strip(pieces, tuple(inputs.items()), tuple(writes.items()), macs)


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
    members: Mapping[str, Member],
) -> dict[str, _Port]:
    """Ports by new machine: the highest bandwidth and the lowest latency of its links, with all
    machines in a ring."""
    properties = {f.name: stated(f) for f in facts}
    incomplete = {
        name for name, port in properties.items() if not port.keys() >= {_SPEED, _LATENCY}
    }
    without_speed = {name for name in incomplete if _SPEED not in properties[name]}
    handle_by_name = {name: member.handle for name, member in members.items()} | dict(handles)
    names = list(handle_by_name)
    links: dict[str, list[_Port]] = {name: [] for name in properties}
    for a, b in zip(names, (*names[1:], names[0]), strict=True):
        if a == b or not incomplete & {a, b}:
            continue
        latency_s = await _latency_s(handle_by_name[a], handle_by_name[b])
        speed = (
            await _bytes_per_s(handle_by_name[a], handle_by_name[b])
            if without_speed & {a, b}
            else _FASTEST
        )
        for name in incomplete & {a, b}:
            links[name].append(_Port(speed, latency_s))
    return {
        name: _Port(
            properties[name].get(_SPEED, max((port.bytes_per_s for port in ports), default=_ALONE)),
            properties[name].get(_LATENCY, min((port.latency_s for port in ports), default=0.0)),
        )
        for name, ports in links.items()
    }


async def measure_link(source: Member, target: Member, members: Iterable[Member]) -> None:
    """Measure both ports of a link and store the results: ``source`` sends, ``target`` receives.
    Each port is also measured with another machine, if there is one, to find out which of the two
    is slow.

    Raises:
        MachineLostError: a machine was lost meanwhile.
    """
    between = await _port(source.handle, target.handle)
    sends = receives = [between]
    for other in [*members][:1]:
        sends = [between, await _port(source.handle, other.handle)]
        receives = [between, await _port(other.handle, target.handle)]
    for member, ports in ((source, sends), (target, receives)):
        best = max(ports, key=lambda port: port.bytes_per_s)
        member.bandwidth_bytes_per_s, member.latency_s = best


async def _port(source: MachineHandle, target: MachineHandle) -> _Port:
    return _Port(await _bytes_per_s(source, target), await _latency_s(source, target))


async def _latency_s(source: MachineHandle, target: MachineHandle) -> float:
    """Median seconds of messages of a few bytes."""
    seconds: list[float] = await source.call("measure_link", target, _EMPTY_BYTES, _REPEATS)
    return median(seconds)


async def _bytes_per_s(source: MachineHandle, target: MachineHandle) -> float:
    """Bandwidth from messages of two sizes, by the difference quotient, as in PICO."""
    small_s, large_s, small, large = 0.0, 0.0, 0, 0
    for (small, large), repeats in _MESSAGES:
        small_s = median(await source.call("measure_link", target, small, repeats))
        large_s = median(await source.call("measure_link", target, large, repeats))
        if large_s - small_s > _PLAIN_S:
            break
    return min(_FASTEST, (large - small) / max(large_s - small_s, 1e-9))
