"""Seconds of a machine's share of a model, from the operations of the share and the speed of the
machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from coexec.errors import DeviceError

FLOPS_PER_MAC = 2
"""A multiplication and an addition. PICO's Eq. 5 counts one operation for both."""


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

    def seconds(self, machine: str, macs: int) -> float:
        """Seconds in which ``machine`` computes ``macs`` multiply-accumulates, halos included.

        Raises:
            DeviceError: the capacity of ``machine`` is not known.
        """
        capacity = self.machines.get(machine)
        if capacity is None:
            raise DeviceError(
                f"the capacity of machine {machine!r} is not known, only those of "
                f"{', '.join(self.machines)}; measure it or state it"
            )
        return capacity.alpha * FLOPS_PER_MAC * macs / capacity.flops_per_s
