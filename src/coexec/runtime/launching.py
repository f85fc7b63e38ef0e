"""Segments that are launched ahead: given to their device before what it was given has ended.

An engine that `launches_ahead` computes elsewhere than in the thread that launches, one thing after
the other. So whichever thread makes such a segment ready launches it at once, and to all that
follows on the same place it counts as done. No thread is woken for it, and the device goes on
without a pause. Threads of other places wait for the device before they use its results.

The order in which a device computes keeps launched segments apart. Until a segment has ended, the
host must not write what it reads or writes. So before the host moves values for a segment, it waits
for all that the segment's place was given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coexec.engines.base import InFlight
from coexec.frontend.module import Module
from coexec.plans.schedule import Segment
from coexec.runtime.allocation import Allocation
from coexec.runtime.installation import Installation
from coexec.system.hardware import MAIN, Place

__all__ = ["SegmentsInFlight", "WaitRules", "wait_rules"]

_NONE: Mapping[int, InFlight] = {}
"""For the many segments that wait for nothing: to make it each time takes longer than to look."""


@dataclass(frozen=True)
class WaitRules:
    """What the host waits for in a plan of which segments are launched ahead."""

    before: Sequence[Sequence[int]]
    """By segment, the launched ones that have to end before the host runs or launches this one."""
    anywhere: frozenset[int]
    """Those that any thread may launch. Values that move into another memory are moved by the
    thread of the device there."""


def wait_rules(installed: Installation, allocation: Allocation) -> WaitRules:
    """What follows from a plan and from where its values lie."""
    segments, ahead = installed.compiled.segments, installed.ahead
    latest: dict[Place, int] = {}
    found: list[Sequence[int]] = []
    anywhere = set()
    for segment, module in installed.parts():
        node, place = segment.index, segment.place
        before = [i for i in segment.after if i in ahead and segments[i].place != place]
        moves = _moves(installed, segment, module)
        # A segment without outputs is not launched: it ends when all before it have.
        by_host = node not in ahead or moves or _puts_together(allocation, segment, module)
        if place in latest and by_host:
            before.append(latest[place])
        found.append(before)
        if node in ahead:
            latest[place] = node
            if not moves:
                anywhere.add(node)
    return WaitRules(found, frozenset(anywhere))


def _puts_together(allocation: Allocation, segment: Segment, module: Module) -> bool:
    """Whether the host writes what a segment reads."""
    readings = {(segment.index, tensor.name) for tensor in module.inputs}
    by_device = allocation.in_place | allocation.copiers.keys()
    return not readings.isdisjoint(allocation.gathers.keys() - by_device)


def _moves(installed: Installation, segment: Segment, module: Module) -> bool:
    """Whether a segment reads what lies in another memory than its own."""
    memory, home = installed.engines[segment.place].memory, installed.home
    elsewhere = (
        home[name].memory != memory if name in home else memory.name != MAIN
        for name in installed.sources(module)
    )
    return any(elsewhere)


@dataclass(frozen=True)
class SegmentsInFlight:
    """What one run has launched. Used by all of its threads."""

    rules: WaitRules
    works: dict[int, InFlight] = field(default_factory=dict)
    """By segment, also of those that have ended."""

    def before(self, node: int) -> Mapping[int, InFlight]:
        """Those that have to end before the host runs or launches a segment."""
        waits = self.rules.before[node]
        return {i: self.works[i] for i in waits if i in self.works} if waits else _NONE

    def may_launch(self, node: int) -> bool:
        """Whether a thread of any device can launch a segment without waiting.

        Raises:
            ExecutionError: a device does not tell.
        """
        if node not in self.rules.anywhere:
            return False
        before = self.before(node)
        return not before or all(work.ended for work in before.values())
