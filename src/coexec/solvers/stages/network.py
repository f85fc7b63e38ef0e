"""What messages of stages keep occupied, and how the time of a stage follows from it.

Three models of time:

* "overlap": machines receive, compute and send at the same time, and leaders forward to leaders.
  A stage takes as long as the busiest of its machines and of their ports; a medium that all
  machines share takes as long as all stages keep it. This is what the simulator does.
* "forwarding": as Eq. 11, and what is handed on to the next leader. Nothing overlaps.
* "eq11": the paper's Eq. 11. The longest computation, and all that the leader sends and receives
  inside of the stage; leaders get what they need from nowhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coexec.system.hardware import Link, System

__all__ = ["MODELS", "StageKey", "StageLoad", "StageTime", "TimeModel", "Wires"]

TimeModel = Literal["overlap", "forwarding", "eq11"]
StageKey = tuple[int, int, int]
"""First piece, last piece, number of machines."""
MODELS: tuple[TimeModel, ...] = ("overlap", "forwarding", "eq11")


class StageLoad(NamedTuple):
    """What one stage computes and moves."""

    compute_s: float
    """Of its busiest machine."""
    scattered_bytes: int
    """From the leader to the other shares."""
    gathered_bytes: int
    forwarded_bytes: int
    """To the leader, from the one before."""
    handed_on_bytes: int
    """To the leader of the next stage."""


class StageTime(NamedTuple):
    """How long one stage takes."""

    period_s: float
    """Without what all stages share."""
    shared_s: float
    """That it keeps a medium which all stages share."""
    latency_s: float
    """From the leader before to its own leader."""


@dataclass(frozen=True)
class Wires:
    """A network of equal links, as planners see it: one bandwidth, and what carries one message
    at a time."""

    byte_s: float
    """Seconds a byte on the slowest link."""
    latency_s: float
    duplex: bool
    """Machines send and receive at the same time."""
    shared: bool
    """All machines share one medium."""

    @classmethod
    def of(cls, system: System) -> "Wires":
        """The network of a system, each device of which is a machine."""
        places = system.places
        links = [system.link(a, b) for a in places for b in places if a != b]
        ends = _ends(links)
        shared = any(not _common(pairs) for pairs in ends.values())
        half = any(
            {a for a, _ in pairs} & {b for _, b in pairs} & _common(pairs)
            for pairs in ends.values()
        )
        return cls(
            max((1.0 / link.bandwidth_bytes_per_s for link in links), default=0.0),
            max((link.sync_latency_s for link in links), default=0.0),
            not half and not shared,
            shared,
        )

    def stage_time(self, load: StageLoad, model: TimeModel) -> StageTime:
        """How long a stage with this load takes."""
        inside = (load.scattered_bytes + load.gathered_bytes) * self.byte_s
        forwarded, handed_on = (
            n * self.byte_s for n in (load.forwarded_bytes, load.handed_on_bytes)
        )
        shared = inside + forwarded if self.shared and model != "eq11" else 0.0
        hops = sum(bool(n) for n in load[1:4])
        latency = load.compute_s + inside + forwarded + hops * self.latency_s
        if model == "eq11":
            return StageTime(load.compute_s + inside, 0.0, load.compute_s + inside)
        if model == "forwarding":
            return StageTime(load.compute_s + inside + handed_on, shared, latency)
        sent = load.scattered_bytes * self.byte_s + handed_on
        received = load.gathered_bytes * self.byte_s + forwarded
        port = 0.0 if self.shared else max(sent, received) if self.duplex else sent + received
        return StageTime(max(load.compute_s, port), shared, latency)

    def period_s(self, times: Iterable[StageTime]) -> float:
        """Seconds a frame of a whole pipeline."""
        found = list(times)
        slowest = max((time.period_s for time in found), default=0.0)
        return max(slowest, sum(time.shared_s for time in found))


def _common(pairs: Sequence[tuple[str, str]]) -> set[str]:
    """The machines that all of these links have as an end."""
    common = set(pairs[0])
    for pair in pairs:
        common &= set(pair)
    return common


def _ends(links: Iterable[Link]) -> Mapping[str, list[tuple[str, str]]]:
    """By medium, source and target of its links."""
    found: dict[str, list[tuple[str, str]]] = {}
    for link in links:
        for medium in link.media:
            found.setdefault(medium, []).append((link.source, link.target))
    return found
