"""Seconds of a machine's share of a model, from the operations of the share and the speed of the
machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from coexec.errors import DeviceError
from coexec.graph.graph import Piece

__all__ = ["FLOPS_PER_MAC", "Capacity", "CapacityCosts", "ShareCosts", "ShareWork"]

FLOPS_PER_MAC = 2
"""A multiplication and an addition. PICO's Eq. 5 counts one operation for both."""


class ShareWork(Protocol):
    """The part of a stage that one machine computes: a `coexec.pipeline.strip.Strip`, or an object
    that derives its pieces only when they are read."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates, halos included."""
        ...

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces in topological order."""
        ...


class ShareCosts(Protocol):
    """Seconds that machines take for their shares.

    `CapacityCosts` estimates them. For a machine with a profile of its own, the simulated makespan
    of the share's pieces replaces the estimate.
    """

    def seconds(self, machine: str, work: ShareWork) -> float:
        """Seconds in which ``machine`` computes ``work``, without sending and receiving."""
        ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """How fast a machine computes."""

    flops_per_s: float
    alpha: float = 1.0
    """Factor by which the machine takes longer than its operations divided by its capacity: fitted
    to measured runs, PICO's Eq. 6."""

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and self.alpha > 0):
            raise DeviceError(
                f"a machine of {self.flops_per_s:g} FLOP/s with alpha {self.alpha:g} computes "
                f"nothing: both are above 0"
            )


@dataclass(frozen=True)
class CapacityCosts:
    """Seconds are alpha * FLOPs / capacity. Paper: Yang et al., "PICO", Eq. 5 to 7."""

    machines: Mapping[str, Capacity]

    def seconds(self, machine: str, work: ShareWork) -> float:
        """Seconds in which ``machine`` computes ``work``.

        Raises:
            DeviceError: the capacity of ``machine`` is not known.
        """
        capacity = self.machines.get(machine)
        if capacity is None:
            raise DeviceError(
                f"the capacity of machine {machine!r} is not known, only those of "
                f"{', '.join(self.machines)}; measure it or state it"
            )
        return capacity.alpha * FLOPS_PER_MAC * work.macs / capacity.flops_per_s
