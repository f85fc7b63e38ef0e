"""Which launches of a program have to wait for which.

Launches that do not depend on each other may run side by side: the branches of an inception module
do. A launch waits for the writers of its operands, and for the readers and writers of its results.
Parts of one memory that do not overlap, such as the inputs of a Concat that are computed in place,
do not disturb each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from coexec.engines.kernels.aliasing import Aliases
from coexec.engines.kernels.base import KernelLaunch, Value
from coexec.engines.kernels.building import Build
from coexec.engines.kernels.touches import Touch
from coexec.plan.memory import Lifetime, share


@dataclass(frozen=True, slots=True)
class Use:
    """A part of a memory that a launch reads or writes, in scalars from the start of ``root``."""

    root: str
    start: int
    stop: int
    writes: bool
    scalar_bytes: int = 4
    touch: Touch | None = None
    """The part that a box of the launch's grid touches; None: all of it."""

    def disturbs(self, later: "Use") -> bool:
        """Whether ``later`` has to come after this use."""
        overlap = self.start < later.stop and later.start < self.stop
        return overlap and (self.writes or later.writes)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """A partial order of the launches of a program, which are numbered in the order of the program.

    That order is one of those that it allows.
    """

    waits: tuple[tuple[int, ...], ...]
    """By launch: those that have to end before it starts, without those that these wait for."""
    before: tuple[int, ...]
    """By launch: all launches that end before it starts, as the bits of a number."""

    @classmethod
    def of(cls, build: Build) -> "Dependencies":
        """The order that the tensors of a program require."""
        earlier_by_root: dict[str, list[tuple[int, Use]]] = {}
        needs: list[set[int]] = []
        for number, launch in enumerate(build.launches):
            uses = uses_of(launch, build.aliases)
            needs.append(
                {
                    other
                    for use in uses
                    for other, earlier in earlier_by_root.get(use.root, ())
                    if earlier.disturbs(use)
                }
            )
            for use in uses:
                earlier_by_root.setdefault(use.root, []).append((number, use))
        return cls.from_needs(needs)

    @classmethod
    def chain(cls, count: int) -> "Dependencies":
        """One launch after the other."""
        return cls.from_needs([{number - 1} if number else set() for number in range(count)])

    @classmethod
    def from_needs(cls, needs: Sequence[set[int]]) -> "Dependencies":
        """The order in which each launch comes after those that it needs, which have lower
        numbers."""
        waits: list[tuple[int, ...]] = []
        before: list[int] = []
        for needed in needs:
            covered, direct = 0, []
            for other in sorted(needed, reverse=True):  # what the later ones wait for is covered
                if not covered >> other & 1:
                    direct.append(other)
                    covered |= before[other] | 1 << other
            waits.append(tuple(reversed(direct)))
            before.append(covered)
        return cls(tuple(waits), tuple(before))


def uses_of(launch: KernelLaunch, aliases: Aliases) -> list[Use]:
    """The memory that a launch reads and writes, without its constants."""
    uses = []
    for value, touch in zip_longest(launch.arguments, launch.touches):
        if isinstance(value, Value):
            place = aliases.of(value.name)
            stop = place.offset + value.items
            scalar_bytes = value.size_bytes // max(value.items, 1)
            writes = value.name in launch.written
            uses.append(Use(place.root, place.offset, stop, writes, scalar_bytes, touch))
    return uses


def shared_buffers(build: Build, order: Dependencies) -> tuple[Mapping[str, int], Sequence[int]]:
    """Buffers for the tensors between the launches: tensors share one if they never exist together,
    in whatever sequence the order lets the launches run.

    Returns:
        The number of the buffer of each tensor, and the size of each buffer in bytes.
    """
    writers: dict[str, set[int]] = {}
    readers: dict[str, set[int]] = {}
    for number, launch in enumerate(build.launches):
        for use in uses_of(launch, build.aliases):
            (writers if use.writes else readers).setdefault(use.root, set()).add(number)
    lifetimes = [
        Lifetime(
            scratch.size_bytes,
            tuple(sorted(writers.get(scratch.name, {scratch.first}))),
            tuple(sorted(readers.get(scratch.name, ()))),
        )
        for scratch in build.scratch
    ]
    buffer_of, sizes = share(lifetimes, order.before)
    names = (scratch.name for scratch in build.scratch)
    return dict(zip(names, buffer_of, strict=True)), sizes
