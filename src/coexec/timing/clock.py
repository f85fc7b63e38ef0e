"""The one model of time: when a launch may start, and what keeps which processor busy meanwhile.

Simulator, list schedulers and searches drive the same `Clock`; what differs is what they launch.
Everything is an index. A *place* is a device with one of its engines. A *node* is something that
ends at a known time: a task, or a segment of one request. A *launch* starts one or several nodes as
a unit. The rules:

* All places of a device take turns in its one thread: a device is free when the last launch on any
  of its places has ended, and all that it copies itself has been copied.
* A launch waits for the nodes that it needs, and for the sync latency of the link where one of them
  ran on another place. Neither processor is busy meanwhile.
* Then its device copies, one after the other, what comes over links that keep the target busy; and
  it waits for what comes over other links. After that it computes without a pause.
* What a launch sends leaves in the order in which it was made; what one task sends, in the order of
  the tasks that read it, by their place in the graph. A link that keeps the source busy takes its
  time from the source's device, right behind the launch. Other links copy in the background, one
  thing after the other, and so do all links that have a medium in common: what is sent waits until
  all media of its link are free. What is sent arrives a sync latency after it has been copied.
* What takes no time to be copied waits for nothing but its maker.
* A launch costs its device one launch overhead, however many tasks are in it (`launched_s`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

from coexec.system.hardware import Link, Place, System

__all__ = ["Clock", "Move", "Places", "launched_s", "places_of"]


def launched_s(pieces_s: Sequence[float], launch_s: float) -> float:
    """Seconds of pieces in one launch, each of which was measured with a launch of its own.

    A piece may measure shorter than an average launch; no launch gets shorter by having it.
    """
    if len(pieces_s) == 1:
        return pieces_s[0]
    computing_s = sum(max(0.0, s - launch_s) for s in pieces_s)
    return computing_s + min(launch_s, max(pieces_s, default=0.0))


@dataclass(frozen=True)
class Places:
    """The places of a system, and what connects them."""

    device: tuple[int, ...]
    """By place, its device."""
    links: tuple[tuple[Link, ...], ...]
    """By source, by target place."""

    @cached_property
    def sync_latency_s(self) -> tuple[tuple[float, ...], ...]:
        """By target, by source place: seconds; none inside a place."""
        return tuple(
            tuple(0.0 if a == b else row[b].sync_latency_s for a, row in enumerate(self.links))
            for b in range(len(self.links))
        )

    @cached_property
    def media(self) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
        """By source, by target: keys of the media that a link occupies while it copies in the
        background. Links without one are media of their own, under their two places."""
        names = {name for row in self.links for link in row for name in link.media}
        number = {name: (-1, i) for i, name in enumerate(sorted(names))}
        return tuple(
            tuple(tuple(number[name] for name in link.media) or ((a, b),)
                  for b, link in enumerate(row))
            for a, row in enumerate(self.links)
        )  # fmt: skip


def places_of(system: System, used: Sequence[Place] | None = None) -> Places:
    """These places of a system; by default each device with its first engine."""
    used = system.places if used is None else used
    links = tuple(tuple(system.link(a, b) for b in used) for a in used)
    return Places(tuple(system.names.index(place.device) for place in used), links)


class Move(NamedTuple):
    """Data that one place sends to another."""

    name: tuple[int, int]
    """Of all that is on its way at a time, no two share one."""
    source: int
    target: int
    transfer_s: float
    """Seconds that copying it keeps the link, and the processor that the link keeps busy."""


class Clock:
    """When devices are free, nodes end and data arrives, as one launch after the other is given.

    Each device has a time of its own. It passes when the device computes and when a link keeps it
    busy, and jumps ahead when the device waits. So it makes no difference in which order launches
    of different devices are given, as long as none comes before what it needs.
    """

    def __init__(
        self,
        places: Places,
        nodes: int,
        noted: Callable[[int, float, float, Iterable[int] | Move], None] | None = None,
    ) -> None:
        """``noted`` is told what keeps a device busy: place, start, end, and the nodes or move."""
        self._device, self._links = places.device, places.links
        self._sync_latency_s, self._media = places.sync_latency_s, places.media
        self._noted = noted
        self.free_s = [0.0] * (max(places.device, default=-1) + 1)
        """By device, when it has nothing left to do."""
        self.end_s = [inf] * nodes
        """By node, when its launch ends; infinite before it is launched."""
        self.place = [-1] * nodes
        """By node, where it was launched; -1 before."""
        self.arrival_s: dict[tuple[int, int], float] = {}
        """By name, when what was sent and not yet received arrives."""
        self.link_free_s: dict[tuple[int, int], float] = {}
        """By medium (`Places.media`) of links that copy in the background, when it is free."""
        self._sent_s: dict[int, float] = {}

    def copy(self) -> Self:
        """A second clock that goes on from here on its own."""
        other = type(self).__new__(type(self))
        other._device, other._links = self._device, self._links
        other._sync_latency_s, other._noted = self._sync_latency_s, self._noted
        other._media = self._media
        other.free_s, other.end_s, other.place = self.free_s[:], self.end_s[:], self.place[:]
        other.arrival_s, other.link_free_s = self.arrival_s.copy(), self.link_free_s.copy()
        other._sent_s = self._sent_s.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """End of the last launch so far, and of what devices had to send behind it."""
        return max(self.free_s)

    def launch(
        self,
        nodes: Iterable[int],
        place: int,
        duration_s: float,
        before: Iterable[int] = (),
        moves: Sequence[Move] = (),
        not_before_s: float = 0.0,
    ) -> float:
        """Launch ``nodes`` at ``place`` as a unit, as early as it can start; when it ends.

        If a node in ``before`` has not been launched yet, nothing happens and the end is infinite.

        Args:
            duration_s: seconds from the start of the launch to its end.
            before: other nodes that it waits for.
            moves: what it receives. All that comes over links that do not keep the target busy must
                have been sent.
            not_before_s: when what it works on arrives from outside.
        """
        device = self._device[place]
        start_s = self.free_s[device]
        if not_before_s > start_s:
            start_s = not_before_s
        end_s, places, sync_latency_s = self.end_s, self.place, self._sync_latency_s[place]
        for node in before:
            ready_s = end_s[node] + sync_latency_s[places[node]]
            if ready_s > start_s:
                start_s = ready_s
        if start_s == inf:
            return inf
        if moves:
            start_s = self._received_s(place, start_s, moves)
        done_s = self.free_s[device] = start_s + duration_s
        for node in nodes:
            end_s[node] = done_s
            places[node] = place
        if self._noted is not None:
            self._noted(place, start_s, done_s, nodes)
        return done_s

    def send(self, node: int, move: Move) -> None:
        """Send what the launch of ``node`` made, behind what it has sent already.

        If its device has been given more launches meanwhile, as in list scheduling, where readers
        are not known before they are placed, these stay where they are; the device is free later.
        """
        name, source, target, transfer_s = move
        link = self._links[source][target]
        if not transfer_s or link.busy == "target":
            return
        if link.busy == "source":
            start_s = self._sent_s.get(node, self.end_s[node])
            self._sent_s[node] = start_s + transfer_s
            self.free_s[self._device[source]] += transfer_s
            if self._noted is not None:
                self._noted(source, start_s, start_s + transfer_s, move)
        else:
            start_s, media = self.end_s[node], self._media[source][target]
            for medium in media:
                start_s = max(start_s, self.link_free_s.get(medium, 0.0))
            for medium in media:
                self.link_free_s[medium] = start_s + transfer_s
        self.arrival_s[name] = start_s + transfer_s + link.sync_latency_s

    def _received_s(self, place: int, start_s: float, moves: Iterable[Move]) -> float:
        """When all of ``moves`` are there, if the device of ``place`` can begin at ``start_s``."""
        arrived_s = start_s
        for move in moves:
            name, source, target, transfer_s = move
            if not transfer_s:
                continue
            if self._links[source][target].busy == "target":
                if self._noted is not None:
                    self._noted(place, start_s, start_s + transfer_s, move)
                start_s += transfer_s
            else:
                arrived_s = max(arrived_s, self.arrival_s.pop(name))
        return max(start_s, arrived_s)
