"""The only model of time: when a launch may start, and which processors are busy until when.

The simulator, the list schedulers and the searches drive the same `Clock`; only their launches
differ. Everything is an index; the index of a device is a *place*. A *node* is something that ends
at a known time: a task, or a segment of one request. A *launch* starts one or several nodes as a
unit.
The rules:

* Devices that share a processor share its one thread. A processor is free when the last launch on
  any of its devices has ended and all copies that they make are done.
* A launch starts after the nodes that it needs have ended. If one of them ran on another place, the
  sync latency of the link comes on top. Neither processor is busy during that latency.
* Then the device copies, one after the other, the tensors that arrive over links that keep the
  target busy; tensors on other links have to arrive as well. After that the device computes without
  a pause.
* The results of a launch are sent in the order in which they were made; the results of one task in
  the order of the tasks that read them, by position in the graph. A link that keeps the source busy
  takes its time from the source's device, directly after the launch. Other links copy in the
  background, one transfer after the other. Links that share a medium also copy one after the other:
  a transfer starts when all media of its link are free. Data arrives a sync latency after it has
  been copied.
* Data that takes no time to copy is available as soon as its producer has ended, plus the latency.
* A launch costs its device one launch overhead, however many tasks are in it (`launched_s`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

from coexec.hardware.hardware import Link, System


def launched_s(pieces_s: Sequence[float], launch_s: float) -> float:
    """Seconds of several pieces in one launch; each piece was measured in a launch of its own.

    A piece may have been measured as shorter than an average launch overhead. Even then it does not
    make the launch shorter.
    """
    if len(pieces_s) == 1:
        return pieces_s[0]
    computing_s = sum(max(0.0, s - launch_s) for s in pieces_s)
    return computing_s + min(launch_s, max(pieces_s, default=0.0))


@dataclass(frozen=True)
class Places:
    """The devices of a system and the links between them."""

    processor: tuple[int, ...]
    """Index of the processor, by device: equal for devices that share it."""
    links: tuple[tuple[Link, ...], ...]
    """Links, by source place and target place."""

    @cached_property
    def sync_latency_s(self) -> tuple[tuple[float, ...], ...]:
        """Sync latency in seconds, by target place and source place; 0 inside a place."""
        return tuple(
            tuple(0.0 if a == b else row[b].sync_latency_s for a, row in enumerate(self.links))
            for b in range(len(self.links))
        )

    @cached_property
    def media(self) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
        """Keys of the media that a link occupies while it copies in the background, by source place
        and target place. A link without a medium has one key of its own, made of its two places."""
        names = {name for row in self.links for link in row for name in link.media}
        number = {name: (-1, i) for i, name in enumerate(sorted(names))}
        return tuple(
            tuple(
                tuple(number[name] for name in link.media) or ((a, b),)
                for b, link in enumerate(row)
            )
            for a, row in enumerate(self.links)
        )


def places_of(system: System) -> Places:
    """The devices of a system."""
    links = tuple(tuple(system.link(a, b) for b in system.places) for a in system.places)
    return Places(system.processors, links)


class Move(NamedTuple):
    """Data that one place sends to another."""

    name: tuple[int, int]
    """Key of the move; unique among all moves that are on their way at the same time."""
    source: int
    target: int
    transfer_s: float
    """Seconds for which the copy occupies the link, and the processor that the link keeps busy."""


class Clock:
    """Seconds at which devices are free, nodes end and data arrives, updated launch by launch.

    Each device has a time of its own. It advances when the device computes and when a link keeps it
    busy, and jumps ahead when the device waits. So launches of different devices may be added in
    any order, as long as each launch comes after the launches that it needs.
    """

    def __init__(
        self,
        places: Places,
        nodes: int,
        noted: Callable[[int, float, float, Iterable[int] | Move], None] | None = None,
    ) -> None:
        """``noted`` is called for each busy span: place, start, end, and the nodes or the move."""
        self._processor, self._links = places.processor, places.links
        self._sync_latency_s, self._media = places.sync_latency_s, places.media
        self._noted = noted
        self.free_s = [0.0] * (max(places.processor, default=-1) + 1)
        """Second from which the processor has nothing left to do, by processor."""
        self.end_s = [inf] * nodes
        """End of the node's launch, by node; infinite before the launch."""
        self.place = [-1] * nodes
        """Place of the node's launch, by node; -1 before the launch."""
        self.arrival_s: dict[tuple[int, int], float] = {}
        """Arrival of data that was sent and not yet received, by name of the move."""
        self.link_free_s: dict[tuple[int, int], float] = {}
        """Second from which a medium is free, by medium (`Places.media`) of background links."""
        self._sent_s: dict[int, float] = {}

    def copy(self) -> Self:
        """An independent clock in the same state."""
        other = type(self).__new__(type(self))
        other._processor, other._links = self._processor, self._links
        other._sync_latency_s, other._noted = self._sync_latency_s, self._noted
        other._media = self._media
        other.free_s, other.end_s, other.place = self.free_s[:], self.end_s[:], self.place[:]
        other.arrival_s, other.link_free_s = self.arrival_s.copy(), self.link_free_s.copy()
        other._sent_s = self._sent_s.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """End of the last launch so far, with the transfers that devices make after it."""
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
        """Launch ``nodes`` at ``place`` as a unit, as early as possible, and return the end.

        If a node in ``before`` has not been launched yet, nothing happens and the end is infinite.

        Args:
            duration_s: seconds from the start of the launch to its end.
            before: other nodes, which have to end first.
            moves: data that the launch receives. Data on links that do not keep the target busy
                must have been sent before.
            not_before_s: the earliest start, because input from outside arrives then.
        """
        processor = self._processor[place]
        start_s = self.free_s[processor]
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
        done_s = self.free_s[processor] = start_s + duration_s
        for node in nodes:
            end_s[node] = done_s
            places[node] = place
        if self._noted is not None:
            self._noted(place, start_s, done_s, nodes)
        return done_s

    def send(self, node: int, move: Move) -> None:
        """Send ``move``, a result of the launch of ``node``, after its earlier moves.

        Launches that were added to the device in the meantime keep their times; only the second
        from which the device is free is later. This happens in list scheduling, because a task's
        readers are unknown until they are placed.
        """
        name, source, target, transfer_s = move
        link = self._links[source][target]
        if not transfer_s or link.busy == "target":
            return
        if link.busy == "source":
            start_s = self._sent_s.get(node, self.end_s[node])
            self._sent_s[node] = start_s + transfer_s
            self.free_s[self._processor[source]] += transfer_s
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
        """Second at which all ``moves`` have arrived, if the device can begin at ``start_s``."""
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
