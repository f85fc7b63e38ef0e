"""Run a plan on a virtual clock: one heap of (end, sequence, node)."""

import heapq
from collections.abc import Iterable, Sequence

from coexec.costs.base import CostModel
from coexec.plans.schedule import Progress, Schedule, Segment, Transfer
from coexec.system.hardware import Link, Place, System
from coexec.timing.trace import Flow, Span, Trace

__all__ = ["VirtualClock", "flows", "launched_s", "segment_s", "simulate"]


def segment_s(segment: Segment, schedule: Schedule, cost: CostModel) -> float:
    """Seconds of one segment: its pieces, started once."""
    graph = schedule.graph
    pieces_s = [
        cost.piece_s(graph, graph.task[piece.task], piece.region, segment.place)
        for piece in segment.pieces
    ]
    return launched_s(pieces_s, cost.launch_s(segment.place))


def launched_s(pieces_s: Sequence[float], launch_s: float) -> float:
    """Seconds of pieces in one launch, each of which was measured with a launch of its own.

    A piece may measure shorter than an average launch; no launch gets shorter by having it.
    """
    computing_s = sum(max(0.0, s - launch_s) for s in pieces_s)
    return computing_s + min(launch_s, max(pieces_s, default=0.0))


def simulate(schedule: Schedule, cost: CostModel, system: System, requests: int = 1) -> Trace:
    """The trace of ``requests`` inferences that wait at second 0, in virtual seconds."""
    clock = VirtualClock(schedule, cost, system)
    progress = Progress(schedule.segments, requests)
    running = [(clock.run(node), node) for node in progress.ready()]
    heapq.heapify(running)
    while running:
        _, node = heapq.heappop(running)
        for freed in progress.finish(node):
            heapq.heappush(running, (clock.run(freed), freed))
    return clock.trace(requests)


class VirtualClock:
    """Start and end of each node, from those of the nodes it waits for.

    Each device has a time of its own. It passes when the device computes and when a link keeps
    it busy, and jumps ahead when the device waits. The order in which different devices are
    asked therefore changes nothing: the executor's threads get the simulator's numbers.
    """

    def __init__(self, schedule: Schedule, cost: CostModel, system: System) -> None:
        self._schedule = schedule
        self._cost = cost
        self._system = system
        self._count = len(schedule.segments)
        self._duration_s = [segment_s(s, schedule, cost) for s in schedule.segments]
        self._free_s = dict.fromkeys(system.names, 0.0)
        self._link_free_s: dict[tuple[Place, Place], float] = {}
        self._end_s: dict[int, float] = {}
        self._arrival_s: dict[tuple[int, int], float] = {}
        self._spans: list[Span] = []

    def run(self, node: int) -> float:
        """Let ``node`` run as early as it can, all that it waits for having run; its end."""
        request, index = divmod(node, self._count)
        segment = self._schedule.segments[index]
        self._receive(segment, request)
        start_s = self._free_s[segment.device]
        end_s = start_s + self._duration_s[index]
        self._free_s[segment.device] = self._end_s[node] = end_s
        tasks = tuple(p.task for p in segment.pieces)
        self._spans.append(
            Span(
                segment.name,
                segment.device,
                start_s,
                end_s,
                "compute",
                tasks,
                index,
                request,
                segment.engine,
            )
        )
        self._send(segment, request)
        return end_s

    def trace(self, requests: int) -> Trace:
        """What has run so far."""
        spans = sorted(self._spans, key=lambda s: (s.start_s, s.end_s, s.device))
        return Trace(
            self._system.names, tuple(spans), tuple(flows(self._schedule.transfers, requests))
        )

    def _receive(self, segment: Segment, request: int) -> None:
        """Wait for what the segment reads, and copy what this device has to copy itself."""
        here = segment.device
        segments = self._schedule.segments
        for before in segment.after:
            source = segments[before].place
            if source != segment.place:
                latency_s = self._system.link(source, segment.place).latency_s
                self._wait(here, self._end_s[request * self._count + before] + latency_s)
        arrivals_s = [self._free_s[here]]
        for number, transfer in enumerate(self._schedule.incoming[segment.index]):
            link = self._system.link(segments[transfer.source].place, segment.place)
            if link.busy == "target":
                self._copy(here, transfer, link, request)
            else:
                node = request * self._count + segment.index
                arrivals_s.append(self._arrival_s[node, number])
        self._wait(here, max(arrivals_s))

    def _send(self, segment: Segment, request: int) -> None:
        """Copy what leaves: keeping this device busy, or in the background behind its back."""
        here = segment.device
        end_s = self._free_s[here]
        for transfer in self._schedule.outgoing[segment.index]:
            target = self._schedule.segments[transfer.target]
            link = self._system.link(segment.place, target.place)
            if link.busy == "target":
                continue
            if link.busy == "source":
                self._copy(here, transfer, link, request)
                done_s = self._free_s[here]
            else:
                ends = segment.place, target.place
                start_s = max(end_s, self._link_free_s.get(ends, 0.0))
                done_s = start_s + self._cost.transfer_s(transfer.size_bytes, link)
                self._link_free_s[ends] = done_s
            number = self._schedule.incoming[target.index].index(transfer)
            key = (request * self._count + target.index, number)
            self._arrival_s[key] = done_s + link.latency_s

    def _wait(self, device: str, until_s: float) -> None:
        self._free_s[device] = max(self._free_s[device], until_s)

    def _copy(self, busy: str, transfer: Transfer, link: Link, request: int) -> None:
        duration_s = self._cost.transfer_s(transfer.size_bytes, link)
        if duration_s <= 0.0:
            return
        start_s = self._free_s[busy]
        self._free_s[busy] = start_s + duration_s
        name = f"{transfer.tensor}: {link.source} -> {link.target}"
        self._spans.append(
            Span(name, busy, start_s, start_s + duration_s, "transfer", request=request)
        )


def flows(transfers: Sequence[Transfer], requests: int = 1) -> Iterable[Flow]:
    """The arrows of a trace."""
    for request in range(requests):
        for t in transfers:
            yield Flow(t.tensor, t.size_bytes, t.source, t.target, request)
