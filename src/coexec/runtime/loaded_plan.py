"""A compiled plan on open devices: its programs, and where each value lies."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from coexec.engines.base import OpenEngine, Program
from coexec.engines.opened import OpenDevice, engine_at
from coexec.errors import DeviceError, UncompiledError, first_line
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import MAIN, Place
from coexec.lowering.module import Module
from coexec.plan.schedule import Segment
from coexec.runtime.compiled import CompiledPlan

_SMALL_BYTES = 2**15
"""Smaller outputs are copied: that is quicker than to allocate new memory in each run."""


Installing = Callable[[int, int], None]
"""Function that is called with the number of compiled segments and the number of all segments."""


class LoadedPlan:
    """Compiled programs and open engines of a plan. All runs share them; no run changes them."""

    def __init__(
        self,
        compiled: CompiledPlan,
        devices: Sequence[OpenDevice],
        tensor_caching: bool,
        installing: Installing | None = None,
    ) -> None:
        """Compile the modules.

        Raises:
            DeviceError: a device of the plan is missing.
            UncompiledError: engines cannot compile some of the segments.
        """
        self.compiled = compiled
        self.tensor_caching = tensor_caching
        places = dict.fromkeys(segment.place for segment in compiled.segments)
        self.engines: dict[Place, OpenEngine] = {p: engine_at(p, devices) for p in places}
        self.home = {t.name: self.engines[s.place] for s, m in self.parts() for t in m.outputs}
        """By value that a segment computes, the engine that computes it."""
        self.programs: list[Program | None] = []
        failed: list[tuple[Segment, DeviceError]] = []
        for segment, module in self.parts():
            engine, program = self.engines[segment.place], None
            try:
                program = engine.compile(module) if module.outputs else None
            except DeviceError as error:
                if type(error) is not DeviceError:  # as of a forked process: not of the module
                    raise
                failed.append((segment, error))
            self.programs.append(program)
            if installing is not None:
                installing(len(self.programs), len(compiled.segments))
        if failed:
            raise _uncompiled(failed)

    @cached_property
    def ahead(self) -> frozenset[int]:
        """Indices of the segments that are launched ahead."""
        return frozenset(
            s.index
            for s in self.compiled.segments
            if self.engines[s.place].launches_ahead and self.programs[s.index] is not None
        )

    @cached_property
    def worded(self) -> frozenset[int]:
        """Indices of the segments whose device sets a word in the host's memory at their end. The
        host finds what it needs of their results in `OpenEngine.host_array` then."""
        return frozenset(i for i in self.ahead if self.sets_words(self._engine(i)))

    @cached_property
    def early(self) -> frozenset[int]:
        """Indices of the segments that are launched before their inputs are there, and wait for
        words in the host's memory.

        The host writes what it has computed of their inputs in `OpenEngine.host_array`. So all
        inputs are whole values, of the host or of the same device.
        """
        return frozenset(i for i in self.worded if self._may_be_early(i))

    def _may_be_early(self, index: int) -> bool:
        engine, after = self._engine(index), self.compiled.segments[index].after
        if any(i in self.worded and self._engine(i) is not engine for i in after):
            return False  # the host does not set the word of another device
        names = {tensor.name for tensor in self.compiled.modules[index].inputs}
        homes = [self.home[name] for name in names if name in self.home]
        whole = names.isdisjoint(self.compiled.gathers)
        return whole and all(home is engine or home.memory.name == MAIN for home in homes)

    def _engine(self, index: int) -> OpenEngine:
        return self.engines[self.compiled.segments[index].place]

    def sets_words(self, engine: OpenEngine) -> bool:
        """Whether programs of this engine set a word at their end, for other devices."""
        return self.tensor_caching and engine.awaits_words and len(self.used) > 1

    def parts(self) -> Iterator[tuple[Segment, Module]]:
        """The segments with their modules."""
        return zip(self.compiled.segments, self.compiled.modules, strict=True)

    def thread_cores(self, device: str) -> set[int]:
        """The cores to which the thread of a processor is bound, for all of its engines; empty:
        any.

        If the engines have no core in common, the first engine decides.
        """
        if not hasattr(os, "sched_setaffinity"):
            return set()
        core_sets = [set(e.thread_cores) for p, e in self.engines.items() if p.device == device]
        common = (
            set.intersection(*(cores for cores in core_sets if cores)) if any(core_sets) else set()
        )
        return common or next((cores for cores in core_sets if cores), set())

    def team_cores(self, device: str) -> Sequence[int]:
        """The cores of a processor, one for each thread of its team."""
        return next(e.device.cores for place, e in self.engines.items() if place.device == device)

    def inputs(self, index: int) -> list[str]:
        """Names of the inputs of a segment's module, in the order in which the schedule moves
        them."""
        transfers = self.compiled.transfers
        turn = {t.tensor: n for n, t in enumerate(transfers) if t.target == index}
        names = [tensor.name for tensor in self.compiled.modules[index].inputs]
        return sorted(names, key=lambda name: turn.get(name, -1))

    def sources(self, module: Module) -> Iterator[str]:
        """Names of the values that a module reads. For an input that is put together, the values of
        its boxes."""
        gathers = self.compiled.gathers
        for tensor in module.inputs:
            if tensor.name in gathers:
                yield from (box.value for box in gathers[tensor.name].boxes)
            else:
                yield tensor.name

    @cached_property
    def used(self) -> tuple[str, ...]:
        """Names of the devices that have something to do."""
        return tuple(dict.fromkeys(s.device for s in self.compiled.segments))

    @cached_property
    def returned(self) -> tuple[Tensor, ...]:
        """Outputs that a segment writes directly to the caller's array, and opaque outputs.

        Only large outputs: for a small one, allocating and binding new memory in each run takes
        longer than a copy. Opaque outputs have no memory before they are computed.
        """
        whole = {t.name for t in self.compiled.outputs} - self.compiled.parts.keys()
        return tuple(
            t
            for _, module in self.parts()
            for t in module.outputs
            if t.name in whole
            and (t.opaque or t.size_bytes >= _SMALL_BYTES)
            and self.home[t.name].memory.name == MAIN
        )


def _uncompiled(failed: Sequence[tuple[Segment, DeviceError]]) -> UncompiledError:
    """The first error, with all tasks that could not be compiled."""
    error = UncompiledError(str(failed[0][1]))
    error.reasons = {
        (piece.task, *segment.place): first_line(reason)
        for segment, reason in failed
        for piece in segment.pieces
    }
    return error
