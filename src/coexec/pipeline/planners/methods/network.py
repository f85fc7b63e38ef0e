"""The time that messages occupy ports and shared media, and three models of a stage's time.

* "overlap": machines receive, compute and send at the same time, and leaders forward to leaders.
  The time of a stage is the time of its busiest machine or port. The time of a medium that all
  machines share is the sum over all stages. The simulator uses this model.
* "forwarding": as "eq11", plus the messages to the next leader. Nothing overlaps.
* "eq11": the paper's Eq. 11. The longest computation, plus all messages of the leader inside the
  stage. Messages between leaders take no time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coexec.hardware.hardware import Link, System

TimeModel = Literal["overlap", "forwarding", "eq11"]
StageKey = tuple[int, int, int]
"""First piece, last piece, number of machines."""
MODELS: tuple[TimeModel, ...] = ("overlap", "forwarding", "eq11")


class StageLoad(NamedTuple):
    """Computation and messages of one stage."""

    compute_s: float
    """Seconds of the busiest machine."""
    scattered_bytes: int
    """Bytes from the leader to the other machines; ``gathered_bytes`` come back."""
    gathered_bytes: int
    forwarded_bytes: int
    """Bytes from the previous stage's leader to the leader."""
    handed_on_bytes: int
    """Bytes from the leader to the leader of the next stage."""


class StageTime(NamedTuple):
    """The time of one stage."""

    period_s: float
    """Period of the stage, without the medium that all stages share."""
    shared_s: float
    """Seconds for which the stage occupies the medium that all stages share."""
    latency_s: float
    """Seconds from sending at the previous leader until its own leader has the results."""


@dataclass(frozen=True)
class Wires:
    """The planners' model of a network: equal links of one bandwidth, and the ports or media that
    carry one message at a time."""

    byte_s: float
    """Seconds a byte on the slowest link."""
    latency_s: float
    duplex: bool
    """Whether a machine sends and receives at the same time."""
    shared: bool
    """Whether all machines share one medium."""

    @classmethod
    def of(cls, system: System) -> "Wires":
        """The network of a system in which each device is a machine."""
        places = system.places
        links = [system.link(a, b) for a in places for b in places if a != b]
        links_of: dict[str, list[Link]] = {}
        for link in links:
            for medium in link.media:
                links_of.setdefault(medium, []).append(link)
        shared = half = False
        for occupying in links_of.values():
            # The machines that are an end of every link which occupies the medium.
            ends = [{link.source.device, link.target.device} for link in occupying]
            common = set[str].intersection(*ends)
            shared |= not common
            senders = {link.source.device for link in occupying}
            half |= bool(senders & {link.target.device for link in occupying} & common)
        return cls(
            max((1.0 / link.bandwidth_bytes_per_s for link in links), default=0.0),
            max((link.sync_latency_s for link in links), default=0.0),
            not half and not shared,
            shared,
        )

    def stage_time(self, load: StageLoad, model: TimeModel) -> StageTime:
        """The time of a stage with this load."""
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
        send_s = load.scattered_bytes * self.byte_s + handed_on
        receive_s = load.gathered_bytes * self.byte_s + forwarded
        port = 0.0 if self.shared else max(send_s, receive_s) if self.duplex else send_s + receive_s
        return StageTime(max(load.compute_s, port), shared, latency)

    def period_s(self, times: Iterable[StageTime]) -> float:
        """Seconds per frame of a whole pipeline."""
        all_times = list(times)
        slowest = max((time.period_s for time in all_times), default=0.0)
        return max(slowest, sum(time.shared_s for time in all_times))
