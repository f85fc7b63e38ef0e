"""Run a plan on a virtual clock: one heap of (end, sequence, node)."""

import heapq
import math
from collections.abc import Iterable, Sequence

from coexec.costs.base import CostModel
from coexec.hardware.hardware import Place, System
from coexec.plan.schedule import Progress, Schedule, Segment, Transfer
from coexec.timing.clock import Clock, Move, Places, launched_s, places_of
from coexec.timing.trace import Flow, Span, Trace, transfer_name
from coexec.timing.waits import Need, with_waits


def segment_s(segment: Segment, schedule: Schedule, cost: CostModel) -> float:
    """Seconds of one segment: stitching its inputs, and computing its pieces in one launch."""
    graph = schedule.graph
    pieces_s = [
        cost.piece_s(graph, graph.task[piece.task], piece.region, segment.place)
        for piece in segment.pieces
    ]
    stitched = schedule.stitched(segment)
    stitched_s = math.fsum(cost.stitch_s(*stitch, segment.place) for stitch in stitched)
    return stitched_s + launched_s(pieces_s, cost.launch_s(segment.place))


def simulate(schedule: Schedule, cost: CostModel, system: System, requests: int = 1) -> Trace:
    """Trace of ``requests`` inferences that all arrive at second 0, in virtual seconds."""
    clock = VirtualClock(schedule, cost, system, requests)
    progress = Progress(schedule.segments, requests)
    running = [(clock.run(node), node) for node in progress.ready()]
    heapq.heapify(running)
    while running:
        _, node = heapq.heappop(running)
        for freed in progress.finish(node):
            heapq.heappush(running, (clock.run(freed), freed))
    return clock.trace(requests)


class VirtualClock:
    """Start and end of each node, computed from its predecessors: `Clock` for a schedule.

    Nodes of different devices may run in any order, so the executor's threads get the same numbers
    as the simulator.
    """

    def __init__(
        self,
        schedule: Schedule,
        cost: CostModel,
        system: System,
        requests: int = 1,
        places: Places | None = None,
    ) -> None:
        """``places``: by default, the system's devices."""
        self._schedule = schedule
        self._names = system.names
        self._count = len(schedule.segments)
        self._places = system.places
        places = places_of(system) if places is None else places
        self._place = [self._places.index(segment.place) for segment in schedule.segments]
        self._sync_latency_s = places.sync_latency_s
        # Joining begins when all parts of an output are there: it ends the work of each device.
        joined_bytes = schedule.joined_bytes
        self._duration_s = [
            segment_s(s, schedule, cost) + cost.join_s(joined_bytes.get(s.index, 0))
            for s in schedule.segments
        ]
        self._transfer_s = []
        for transfer in schedule.transfers:
            source, target = self._ends(transfer)
            link = places.links[source][target]
            self._transfer_s.append(cost.transfer_s(transfer.tensor, transfer.size_bytes, link))
        self._incoming, self._outgoing = schedule.incoming, _outgoing(schedule)
        self._arrival_s: dict[tuple[int, int], float] = {}
        """Arrival of tensors that the target does not copy itself, by transfer and request."""
        self._spans: list[Span] = []
        self._clock = Clock(places, self._count * requests, self._noted)

    def run(self, node: int) -> float:
        """Run ``node`` as early as possible and return its end. Its predecessors have run."""
        request, index = divmod(node, self._count)
        before = [node - index + i for i in self._schedule.segments[index].after]
        moves = [self._move(i, request) for i in self._incoming[index]]
        duration_s = self._duration_s[index]
        end_s = self._clock.launch((node,), self._place[index], duration_s, before, moves)
        for i in self._outgoing[index]:
            self._clock.send(node, self._move(i, request))
            if (i, request) in self._clock.arrival_s:
                self._arrival_s[i, request] = self._clock.arrival_s[i, request]
        return end_s

    def trace(self, requests: int) -> Trace:
        """The trace of the nodes that have run so far."""
        spans = with_waits(self._spans, self._needs)
        return Trace(self._names, spans, tuple(flows(self._schedule.transfers, requests)))

    def _needs(self, span: Span) -> Iterable[Need]:
        """Results that the segment of a span needs: other segments, with the latency of the link,
        and tensors that its device does not copy itself."""
        segments, index, request = self._schedule.segments, span.segment, span.request
        latency_s = self._sync_latency_s[self._place[index]]
        for i in segments[index].after:
            end_s = self._clock.end_s[request * self._count + i]
            yield Need(end_s + latency_s[self._place[i]], segments[i].name, i)
        for number in self._incoming[index]:
            if (number, request) in self._arrival_s:
                transfer = self._schedule.transfers[number]
                yield Need(
                    self._arrival_s[number, request],
                    self._name(transfer),
                    transfer.source,
                    transfer.tensor,
                )

    def _ends(self, transfer: Transfer) -> tuple[int, int]:
        return self._place[transfer.source], self._place[transfer.target]

    def _move(self, number: int, request: int) -> Move:
        source, target = self._ends(self._schedule.transfers[number])
        return Move((number, request), source, target, self._transfer_s[number])

    def _name(self, transfer: Transfer) -> str:
        source, target = self._ends(transfer)
        return transfer_name(transfer.tensor, self._places[source], self._places[target])

    def _noted(self, place: int, start_s: float, end_s: float, what: Iterable[int] | Move) -> None:
        if isinstance(what, Move):
            (number, request), source, target, _ = what
            transfer = self._schedule.transfers[number]
            self._spans.append(
                Span(
                    self._name(transfer),
                    self._places[place].device,
                    start_s,
                    end_s,
                    "transfer",
                    segment=transfer.target if place == target else transfer.source,
                    request=request,
                    tensor=transfer.tensor,
                    size_bytes=transfer.size_bytes,
                    source=self._places[source],
                    target=self._places[target],
                )
            )
            return
        for node in what:
            request, index = divmod(node, self._count)
            segment = self._schedule.segments[index]
            self._spans.append(Span.of_segment(segment, start_s, end_s, request))


def _outgoing(schedule: Schedule) -> list[list[int]]:
    """Indices of the transfers from a segment in the order in which they leave, by segment."""
    graph, segments = schedule.graph, schedule.segments
    number_of = {task.name: i for i, task in enumerate(graph.tasks)}
    tasks = [[piece.task for piece in s.pieces] for s in segments]
    places_of_task: dict[str, set[Place]] = {task.name: set() for task in graph.tasks}
    for segment, names in zip(segments, tasks, strict=True):
        for name in names:
            places_of_task[name].add(segment.place)

    def turn(number: int) -> tuple[int, int, int]:
        """Sort key: position of the producer in its segment, position in the graph of the first
        reader at the target, and index of that reader's input."""
        transfer = schedule.transfers[number]
        place = segments[transfer.target].place
        made = tasks[transfer.source].index(graph.producer[transfer.tensor].name)
        reader = next(t for t in graph.readers[transfer.tensor] if place in places_of_task[t.name])
        return made, number_of[reader.name], reader.inputs.index(transfer.tensor)

    outgoing: list[list[int]] = [[] for _ in segments]
    for number in sorted(range(len(schedule.transfers)), key=turn):
        outgoing[schedule.transfers[number].source].append(number)
    return outgoing


def flows(transfers: Sequence[Transfer], requests: int = 1) -> Iterable[Flow]:
    """The arrows of a trace: one for each transfer and request."""
    for request in range(requests):
        for t in transfers:
            yield Flow(t.tensor, t.size_bytes, t.source, t.target, request)
