"""Seconds of a machine's share of a model, from what it computes and what the machine can do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from coexec.errors import DeviceError
from coexec.ir.graph import Piece

__all__ = ["FLOPS_PER_MAC", "Capacity", "CapacityCosts", "ShareCosts", "ShareWork"]

FLOPS_PER_MAC = 2
"""A multiplication and an addition. PICO's Eq. 5 counts one operation for both."""


class ShareWork(Protocol):
    """What a machine computes of a stage: an `coexec.ir.strip.Strip`, or one that is worked out
    when its pieces are asked for."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates, halos included."""
        ...

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """In topological order."""
        ...


class ShareCosts(Protocol):
    """How long machines take for shares.

    `CapacityCosts` estimates it. Once a machine has a profile of its own, its simulated makespan
    of the share's pieces takes that place.
    """

    def seconds(self, machine: str, work: ShareWork) -> float:
        """Seconds that ``machine`` computes ``work``, without what it sends and receives."""
        ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """How fast a machine computes."""

    flops_per_s: float
    alpha: float = 1.0
    """How many times longer than its operations and capacity say it takes: fitted to measured
    runs, PICO's Eq. 6."""

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
        """Seconds of ``work``.

        Raises:
            DeviceError: nothing is known of ``machine``.
        """
        known = self.machines.get(machine)
        if known is None:
            raise DeviceError(f"the capacity of machine {machine!r} is not known, only those of "
                              f"{', '.join(self.machines)}; measure it or state it")  # fmt: skip
        return known.alpha * FLOPS_PER_MAC * work.macs / known.flops_per_s
