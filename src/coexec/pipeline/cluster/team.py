"""The machines of a session."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coexec.costs.capacity import FLOPS_PER_MAC, Capacity
from coexec.pipeline.cluster.handles import MachineFacts, MachineHandle, Spent
from coexec.pipeline.cluster.planning import KnownMachine

_ENOUGH_S = 1.0
"""Seconds of computation that are enough to estimate a machine's speed."""
_ENOUGH = 5
"""Number of computations or messages that is enough."""
_SLOWER, _SLOW_S = 3.0, 0.02
"""A port is suspect if its messages take more than so many times the expected time, and more than
so many seconds each. Messages that wait for each other take less."""


class Team(Protocol):
    """Hires machines: starts their processes for a session."""

    def hire(self) -> Awaitable[Mapping[str, MachineHandle]]:
        """Hire all available machines that are not hired yet; return them by name.

        Raises:
            ClosedError: the cluster has ended; raised when the call is awaited.
        """
        ...

    @property
    def door(self) -> str | None:
        """Machine from which frames come, or the name of no machine if they come from outside;
        None: frames need no link."""
        ...

    async def dismiss(self, name: str) -> None:
        """End a machine's work for the session, whether it answers or not. It may be hired
        again."""
        ...


@dataclass
class Member:
    """A machine that was hired."""

    name: str
    handle: MachineHandle
    facts: MachineFacts
    flops_per_s: float
    bandwidth_bytes_per_s: float
    latency_s: float
    """Seconds of a message, without the transfer time of its bytes."""
    alpha: float = 1.0
    """Ratio of the measured computing time to the time by its capacity."""
    recent: Spent = field(default_factory=Spent)
    """Computations since ``alpha`` was last updated."""
    computed: Spent = field(default_factory=Spent)
    """All computations."""
    sent: Spent = field(default_factory=Spent)
    received: Spent = field(default_factory=Spent)
    """Messages and frames that it has received."""
    messages: dict[str, Spent] = field(default_factory=dict)
    """Messages that it has sent since its links were last checked, by target."""
    waiting: int = 0
    """Number of computations that are ready to start."""
    inside: int = 0
    """Number of frames in flight on it."""

    @property
    def known(self) -> KnownMachine:
        """Its properties for planning."""
        capacity = Capacity(self.flops_per_s, self.alpha)
        return KnownMachine(
            self.name, capacity, self.bandwidth_bytes_per_s, self.latency_s, self.facts.memory_bytes
        )

    def slow_targets(self) -> list[str]:
        """Machines to which its recent messages took much longer than its port explains. Removes
        the messages that were enough for this check."""
        enough = [name for name, spent in self.messages.items() if spent.count >= _ENOUGH]
        targets = []
        for name in enough:
            spent = self.messages.pop(name)
            expected_s = spent.count * self.latency_s + spent.amount / self.bandwidth_bytes_per_s
            if spent.seconds > max(_SLOWER * expected_s, _SLOW_S * spent.count):
                targets.append(name)
        return targets

    def observed_alpha(self) -> float | None:
        """Its `alpha` by its recent computations; None if these are too few."""
        spent = self.recent
        if spent.count < _ENOUGH or spent.seconds < _ENOUGH_S or not spent.amount:
            return None
        return spent.seconds * self.flops_per_s / (FLOPS_PER_MAC * spent.amount)
