"""Who the machines of a session are, while it lasts."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coexec.cluster.handles import MachineFacts, MachineHandle, Spent
from coexec.cluster.planning import KnownMachine
from coexec.costs.capacity import FLOPS_PER_MAC, Capacity

__all__ = ["Member", "Team"]

_ENOUGH_S = 1.0
"""Computing that a machine's speed is told from."""
_ENOUGH = 5
"""Computations or messages of it."""
_SLOWER, _SLOW_S = 3.0, 0.02
"""Messages that take so many times longer than thought, and so long, make a port suspect: in
between they wait for each other."""


class Team(Protocol):
    """Hires machines: starts their part of a session."""

    def hire(self) -> Awaitable[Mapping[str, MachineHandle]]:
        """All machines that are there and were not hired yet, by name.

        Raises:
            ClosedError: while it is awaited, if the cluster has ended.
        """
        ...

    @property
    def door(self) -> str | None:
        """The machine from which frames come, or a name of no machine if they come from elsewhere;
        None: they need no link to come by."""
        ...

    def dismiss(self, name: str) -> Awaitable[None]:
        """End a machine's part, whether it answers or not. It may be hired again."""
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
    """Of a message, besides its bytes."""
    alpha: float = 1.0
    """How many times longer it takes than its capacity says, from what it has computed."""
    heard_s: float = 0.0
    """`time.monotonic` when it was last heard of."""
    recent: Spent = field(default_factory=Spent)
    """Computations since ``alpha`` was last looked at."""
    computed: Spent = field(default_factory=Spent)
    """All of them."""
    sent: Spent = field(default_factory=Spent)
    received: Spent = field(default_factory=Spent)
    """Messages and frames that it has taken."""
    messages: dict[str, Spent] = field(default_factory=dict)
    """By target, those that it has sent since links were last looked at."""
    computing_s: float = 0.0
    """How long it has computed the share that it is at."""
    complaints: int = 0
    """How many messages to it were not taken, since the last answer."""
    waiting: int = 0
    """Computations that could start."""
    inside: int = 0
    """Frames that it has something of."""

    @property
    def known(self) -> KnownMachine:
        """For planning."""
        capacity = Capacity(self.flops_per_s, self.alpha)
        return KnownMachine(
            self.name, capacity, self.bandwidth_bytes_per_s, self.latency_s, self.facts.memory_bytes
        )

    def slow_targets(self) -> list[str]:
        """Machines to which its messages took much longer of late than its port would. Messages
        that were enough to tell are forgotten."""
        enough = [name for name, spent in self.messages.items() if spent.count >= _ENOUGH]
        found = []
        for name in enough:
            spent = self.messages.pop(name)
            thought_s = spent.count * self.latency_s + spent.amount / self.bandwidth_bytes_per_s
            if spent.seconds > max(_SLOWER * thought_s, _SLOW_S * spent.count):
                found.append(name)
        return found

    def observed_alpha(self) -> float | None:
        """Its `alpha` by what it has computed of late; None if that is too little to tell."""
        spent = self.recent
        if spent.count < _ENOUGH or spent.seconds < _ENOUGH_S or not spent.amount:
            return None
        return spent.seconds * self.flops_per_s / (FLOPS_PER_MAC * spent.amount)
