"""Machines whose settings state everything that a plan needs, so that no machine has to run."""

from collections.abc import Sequence
from itertools import chain, repeat

from coexec.costs.capacity import Capacity
from coexec.errors import UsageError
from coexec.pipeline.cluster.planning import KnownMachine
from coexec.pipeline.cluster.settings import ClusterSettings

__all__ = ["lacking", "made_up", "stated_machines"]

_MBIT = 1e6 / 8
"""Bytes a second of 1 Mbit/s."""


def lacking(settings: ClusterSettings) -> str | None:
    """Text that names a missing property of the machines; None if all are stated."""
    if not settings.machines:
        return "no machine is named"
    for name in settings.machines:
        properties = settings.known_of(name)
        if "flops_per_s" not in properties:
            return f"machines.{name}.gflops is not stated"
        if "bandwidth_bytes_per_s" not in properties:
            return (
                f"neither network.bandwidth_mbit_s nor machines.{name}.bandwidth_mbit_s is stated"
            )
    return None


def stated_machines(settings: ClusterSettings) -> tuple[KnownMachine, ...]:
    """Machines of complete settings, see `lacking`."""
    return tuple(
        KnownMachine(
            name,
            Capacity(properties["flops_per_s"]),
            properties["bandwidth_bytes_per_s"],
            properties.get("latency_s", 0.0),
        )
        for name in settings.machines
        for properties in (settings.known_of(name),)
    )


def made_up(
    count: int | None, gflops: Sequence[float], mbit_s: Sequence[float]
) -> tuple[KnownMachine, ...]:
    """Machines with the names m1, m2 and so on.

    Args:
        count: number of machines; None: one for each capacity.
        gflops: capacities; the last one is used for all further machines. The same holds for
            ``mbit_s``.

    Raises:
        UsageError: there is no machine or no capacity, or there are more values than machines.
    """
    count = len(gflops) if count is None else count
    if count < 1:
        raise UsageError(f"--machines {count}: plan for at least one")
    for name, values in (("--gflops", gflops), ("--mbit", mbit_s)):
        if not values or len(values) > count:
            raise UsageError(
                f"{name} has {len(values)} values for {count} machines; give one for "
                f"each, or fewer: the last one counts for the rest"
            )
    rows = zip(range(count), *(chain(v, repeat(v[-1])) for v in (gflops, mbit_s)), strict=False)
    return tuple(
        KnownMachine(f"m{index + 1}", Capacity(1e9 * speed), _MBIT * port)
        for index, speed, port in rows
    )
