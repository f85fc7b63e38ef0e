"""Run a pipeline plan on a virtual clock, with shared media and a limit of frames in flight.

The rules, besides those of `coexec.timing.clock`:

* Each machine computes one share at a time. Of those that are ready it takes one of the earliest
  frame, as the machines of a cluster do (`cluster/machine.py`): in the order in which they became
  ready, all frames inside would pass one stage before any passes the next one of the same machine.
* It receives and sends at the same time: a message leaves in the background as soon as its data is
  ready, and messages wait for the media of their link in that order. Cutting and stitching take no
  time.
* A frame is let in when fewer frames than there are credits are inside.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import linear_regression

from coexec.costs.capacity import CapacityCosts
from coexec.errors import UsageError
from coexec.graph.graph import Graph
from coexec.hardware.hardware import Link, System
from coexec.pipeline.plan.flow import Action, Computation, Message, actions
from coexec.pipeline.plan.plan import PipelinePlan
from coexec.timing.clock import Clock, Move, Places
from coexec.timing.trace import Span, Trace


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of one frame."""

    message: Message
    frame: int
    ready_s: float
    """Second at which all its data was ready."""
    arrived_s: float


@dataclass(frozen=True)
class PipelineRun:
    """Result of a simulated pipeline, in virtual seconds."""

    trace: Trace
    """Computations by machine; ``segment`` of a span is its stage, ``request`` its frame."""
    sent: tuple[Sent, ...]
    let_in_s: tuple[float, ...]
    """Second at which the frame was let in, by frame."""
    answered_s: tuple[float, ...]
    """Second at which the last leader had all outputs, by frame."""

    @property
    def latency_s(self) -> float:
        """Latency of the first frame, which does not wait for other frames."""
        return self.answered_s[0] - self.let_in_s[0]

    @property
    def period_s(self) -> float:
        """Seconds from one answer to the next, see `period_of`; for a single frame, its latency."""
        period_s = period_of(self.answered_s)
        return self.latency_s if period_s is None else period_s

    def utilisation(self, machine: str) -> float:
        """Share of the time from the first to the last answer in which a machine computes; for a
        single frame, share of its latency."""
        start_s, end_s = min(self.answered_s), max(self.answered_s)
        if end_s <= start_s:
            start_s = self.let_in_s[0]
        busy_s = math.fsum(
            max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s))
            for span in self.trace.of("compute")
            if span.device == machine
        )
        return busy_s / (end_s - start_s) if end_s > start_s else 0.0


def period_of(answered_s: Iterable[float]) -> float | None:
    """Seconds from one answer to the next: the slope of the answers' times in the middle half, for
    fewer than four answers of all. None for a single answer.

    The ends are left out because the pipeline fills and drains there. The slope is taken because
    answers may come in bursts.
    """
    ordered = sorted(answered_s)
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    return linear_regression(range(len(middle)), middle).slope if len(middle) > 1 else None


def simulate_pipeline(
    plan: PipelinePlan,
    graph: Graph,
    cost: CapacityCosts,
    system: System,
    frames: int = 1,
    *,
    credits: int | None = None,
    door: str | None = None,
) -> PipelineRun:
    """Simulate ``frames`` frames in a verified plan.

    Args:
        credits: the most frames inside at a time; the plan's own limit applies as well.
        door: the device that sends the frames and receives the answers; None: frames are in the
            first leader, and answers stay in the last one.

    Raises:
        UsageError: the number of frames or credits is below 1.
    """
    limits = [limit for limit in (credits, plan.at_once) if limit is not None]
    if min(frames, *limits, 1) < 1:
        raise UsageError(f"{frames} frames and {credits} credits; at least 1 of each")
    flow = actions(plan, graph, door)
    return _PipelineClock(flow, cost, system, frames, min(limits, default=frames)).run()


_READY, _LOOKS = 0, 1
"""Kinds of events. At one time, all actions are ready before a machine chooses one."""


class _PipelineClock:
    """`Clock` for the actions of a plan, frame after frame.

    The index of a node is frame * number of actions + action. Each machine has two places: one that
    computes and one that sends messages.
    """

    def __init__(
        self,
        flow: Sequence[Action],
        cost: CapacityCosts,
        system: System,
        frames: int,
        credits: int,
    ) -> None:
        self._flow, self._system = flow, system
        self._frames, self._credits = frames, credits
        self._machine = {name: i for i, name in enumerate(system.names)}
        self._clock = Clock(_places(system), len(flow) * frames)
        self._duration_s = [self._seconds(action, cost) for action in flow]
        self._readers: list[list[int]] = [[] for _ in flow]
        for index, action in enumerate(flow):
            for before in action.after:
                self._readers[before].append(index)
        # An action without predecessors has to wait until its frame is let in.
        self._waiting = [max(1, len(action.after)) for action in flow] * frames
        self._ready_s = [0.0] * (len(flow) * frames)
        self._heap: list[tuple[float, int, int]] = []
        """Events by time: actions that are ready, and then machines that look for work."""
        self._ready: list[list[int]] = [[] for _ in system.names]
        """By machine, as heaps, its computations that are ready: those of the earliest frame come
        first."""
        self._unanswered = [sum(not readers for readers in self._readers)] * frames
        self._let_in_s, self._answered_s = [0.0] * frames, [0.0] * frames
        self._spans: list[Span] = []
        self._sent: list[Sent] = []

    def run(self) -> PipelineRun:
        """Run all frames, event by event."""
        for frame in range(min(self._credits, self._frames)):
            self._let_in(frame, 0.0)
        while self._heap:
            at_s, kind, number = heapq.heappop(self._heap)
            if kind == _LOOKS:
                self._compute_next(number, at_s)
                continue
            what = self._flow[number % len(self._flow)].what
            if isinstance(what, Message):
                self._ended(number, self._sent_at(number, what, at_s))
            else:
                machine = self._machine[what.machine]
                heapq.heappush(self._ready[machine], number)
                heapq.heappush(self._heap, (at_s, _LOOKS, machine))
        spans = tuple(sorted(self._spans, key=lambda span: span.start_s))
        return PipelineRun(
            Trace(self._system.names, spans),
            tuple(self._sent),
            tuple(self._let_in_s),
            tuple(self._answered_s),
        )

    def _free(self, node: int, at_s: float) -> None:
        """Record that one of the node's predecessors has ended at ``at_s``."""
        self._ready_s[node] = max(self._ready_s[node], at_s)
        self._waiting[node] -= 1
        if self._waiting[node] == 0:
            heapq.heappush(self._heap, (self._ready_s[node], _READY, node))

    def _let_in(self, frame: int, at_s: float) -> None:
        self._let_in_s[frame] = at_s
        for index, action in enumerate(self._flow):
            if not action.after:
                self._free(frame * len(self._flow) + index, at_s)

    def _answer(self, frame: int, at_s: float) -> None:
        """Record that one of the last actions of a frame has ended. After the last one, the next
        frame is let in."""
        self._unanswered[frame] -= 1
        self._answered_s[frame] = max(self._answered_s[frame], at_s)
        after = frame + self._credits
        if not self._unanswered[frame] and after < self._frames:
            self._let_in(after, self._answered_s[frame])

    def _compute_next(self, machine: int, at_s: float) -> None:
        """Start the first computation that is ready on a machine, if the machine is free."""
        place, ready = 2 * machine, self._ready[machine]
        if not ready or self._clock.free_s[place] > at_s:
            return
        node = heapq.heappop(ready)
        frame, index = divmod(node, len(self._flow))
        what = self._flow[index].what
        end_s = self._clock.launch((node,), place, self._duration_s[index], not_before_s=at_s)
        name, device = f"stage {what.stage}", self._system.names[machine]
        self._spans.append(Span(name, device, at_s, end_s, segment=what.stage, request=frame))
        heapq.heappush(self._heap, (end_s, _LOOKS, machine))
        self._ended(node, end_s)

    def _sent_at(self, node: int, what: Message, ready_s: float) -> float:
        """Send a message as early as possible from ``ready_s`` on, and return when it has
        arrived."""
        frame, index = divmod(node, len(self._flow))
        source, target = (2 * self._machine[name] + 1 for name in (what.source, what.target))
        end_s = self._clock.launch((node,), source, 0.0, not_before_s=ready_s)
        if duration_s := self._duration_s[index]:
            self._clock.send(node, Move((node, 0), source, target, duration_s))
            end_s = self._clock.arrival_s.pop((node, 0))
        self._sent.append(Sent(what, frame, ready_s, end_s))
        return end_s

    def _ended(self, node: int, end_s: float) -> None:
        """Record that an action ends at ``end_s``."""
        frame, index = divmod(node, len(self._flow))
        for reader in self._readers[index]:
            self._free(node - index + reader, end_s)
        if not self._readers[index]:
            self._answer(frame, end_s)

    def _seconds(self, action: Action, cost: CapacityCosts) -> float:
        what = action.what
        if isinstance(what, Computation):
            return cost.seconds(what.machine, what.strip.macs)
        ends = (self._system.device[name].place for name in (what.source, what.target))
        return self._system.link(*ends).copy_s(what.size_bytes)


def _places(system: System) -> Places:
    """Two places for each machine: one that computes and one that sends messages."""
    rows: list[tuple[Link, ...]] = []
    ends = [place for place in system.places for _ in range(2)]
    for a in ends:
        rows.append(tuple(system.link(a, b) for b in ends))
    return Places(tuple(range(len(ends))), tuple(rows))
