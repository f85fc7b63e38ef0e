"""Segments that are launched ahead: queued on their device before its earlier segments have ended.

An engine with `launches_ahead` computes outside of the launching thread, one program after the
other. So the thread that makes such a segment ready launches it at once. Later segments on the same
place treat it as ended. No thread is woken for it, and the device continues without a pause.
Threads of other places wait for the device before they use its results.

The device computes launched segments in order, so they do not disturb each other. Until a segment
has ended, the host must not write tensors that the segment reads or writes. So before the host
moves values for a segment, it waits for all launched segments of the same place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coexec.engines.base import InFlight
from coexec.hardware.hardware import MAIN, Place
from coexec.lowering.module import Module
from coexec.plan.schedule import Segment
from coexec.runtime.allocation import Allocation
from coexec.runtime.loaded_plan import LoadedPlan

__all__ = ["SegmentsInFlight", "WaitRules", "wait_rules"]

_NONE: Mapping[int, InFlight] = {}
"""Shared result for the many segments that wait for nothing: a new dictionary would take longer."""


@dataclass(frozen=True)
class WaitRules:
    """Rules for the host's waiting in a plan whose segments are launched ahead."""

    before: Sequence[Sequence[int]]
    """By segment, the launched segments that have to end before the host runs or launches it."""
    anywhere: frozenset[int]
    """Segments that any thread may launch, because they read no values from another memory. The
    thread of the reader's device moves such values."""


def wait_rules(installed: LoadedPlan, allocation: Allocation) -> WaitRules:
    """The wait rules of a plan, which depend on the memories of its values."""
    segments, ahead = installed.compiled.segments, installed.ahead
    latest: dict[Place, int] = {}
    waits: list[Sequence[int]] = []
    anywhere = set()
    for segment, module in installed.parts():
        node, place = segment.index, segment.place
        before = [i for i in segment.after if i in ahead and segments[i].place != place]
        moves = _moves(installed, segment, module)
        # A segment without outputs is not launched: it ends when all earlier segments have ended.
        by_host = node not in ahead or moves or _puts_together(allocation, segment, module)
        if place in latest and by_host:
            before.append(latest[place])
        waits.append(before)
        if node in ahead:
            latest[place] = node
            if not moves:
                anywhere.add(node)
    return WaitRules(waits, frozenset(anywhere))


def _puts_together(allocation: Allocation, segment: Segment, module: Module) -> bool:
    """Whether the host has to put together an input of a segment."""
    readings = {(segment.index, tensor.name) for tensor in module.inputs}
    by_device = allocation.in_place | allocation.copiers.keys()
    return not readings.isdisjoint(allocation.gathers.keys() - by_device)


def _moves(installed: LoadedPlan, segment: Segment, module: Module) -> bool:
    """Whether a segment reads a value that lies in another memory than its engine's."""
    memory, home = installed.engines[segment.place].memory, installed.home
    elsewhere = (
        home[name].memory != memory if name in home else memory.name != MAIN
        for name in installed.sources(module)
    )
    return any(elsewhere)


@dataclass(frozen=True)
class SegmentsInFlight:
    """The segments that one run has launched. Used by all of its threads."""

    rules: WaitRules
    works: dict[int, InFlight] = field(default_factory=dict)
    """The launched work by segment, including work that has ended."""

    def before(self, node: int) -> Mapping[int, InFlight]:
        """The launched segments that have to end before the host runs or launches ``node``."""
        waits = self.rules.before[node]
        return {i: self.works[i] for i in waits if i in self.works} if waits else _NONE

    def may_launch(self, node: int) -> bool:
        """Whether a thread of any device can launch a segment without waiting.

        Raises:
            ExecutionError: a device cannot report whether its work has ended.
        """
        if node not in self.rules.anywhere:
            return False
        before = self.before(node)
        return not before or all(work.ended for work in before.values())
