"""Link a loaded plan: bind its programs to memory, and make steps of a run loop from its order.

The memory belongs to the linked plan. A run that was abandoned gives neither of them back: the next
one links again, so late results of threads and devices are written to memory that is not read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coexec.arrays import Array, address_of, joined_axes
from coexec.engines.base import Bound, InFlight, Native, NativeLaunch, OpenEngine
from coexec.hardware.hardware import MAIN
from coexec.plan.program import Copy, DeviceProgram, Run, Signal, Wait, device_programs
from coexec.plan.schedule import Segment
from coexec.runtime.allocation import Allocation
from coexec.runtime.loaded_plan import LoadedPlan
from coexec.runtime.recorder import Recorder
from coexec.runtime.steps import (
    AwaitEvent,
    CallPython,
    CopyBox,
    LoopStep,
    SignalEvent,
    Spot,
)
from coexec.runtime.transfers import Landed, Transfers


class LinkedStep(NamedTuple):
    """A step of a loop, and the segment that it belongs to."""

    step: LoopStep
    segment: int
    computes: bool = False
    """Whether it is a part of the segment itself. False: the device waits or fetches before it, or
    meets other devices behind it."""
    failure: Callable[[int], Exception] | None = None
    """Makes the error of a native call from its result."""


class _Fed(NamedTuple):
    """A tensor of a bound segment that is the caller's array, another one in each run."""

    bind: Callable[[str, Any], None]
    name: str


class LinkedPlan:
    """Bound programs and their memory, for one run at a time."""

    def __init__(
        self, installed: LoadedPlan, allocation: Allocation, feeds: Mapping[str, Any]
    ) -> None:
        """
        Args:
            allocation: used by this linked plan alone.
            feeds: of the first run.
        """
        self._installed = installed
        self._allocation = allocation
        self._landed: Landed = {}
        self._values = Transfers(installed, self._allocation, self._landed, feeds, Recorder())
        """The values of the current run."""
        self._fed: list[_Fed] = []
        self._returned: list[_Fed] = []
        self._slots: dict[str, int] = {}
        """Numbers of the values whose memory is the caller's and that boxes are copied from."""
        self._in_flight: dict[int, InFlight] = {}
        """The launched segments of the current run."""
        self._bound = [self._bind(segment) for segment in installed.compiled.segments]

    def programs(self, launches_natively: bool) -> tuple[tuple[LinkedStep, ...], ...]:
        """The steps of each device, in the order of `LoadedPlan.used`.

        Args:
            launches_natively: False: Python launches, so that `in_flight` and the engine know when
                a segment was computed.
        """
        compiled = self._installed.compiled
        return tuple(
            tuple(self._steps(program, launches_natively))
            for program in device_programs(compiled.segments, compiled.transfers)
        )

    @property
    def launches_natively(self) -> bool:
        """Whether C functions launch some segments."""
        return any(_launch(bound) is not None for bound in self._bound)

    @property
    def events(self) -> int:
        """Number of events: one for each segment."""
        return len(self._bound)

    @property
    def slot_count(self) -> int:
        return len(self._slots)

    def begin(self, feeds: Mapping[str, Any], recorder: Recorder) -> Sequence[int]:
        """Prepare a run: allocate the caller's outputs, and bind them and the fed arrays.

        Returns:
            The pointers of the slots.
        """
        values = Transfers(self._installed, self._allocation, self._landed, feeds, recorder)
        self._values, self._in_flight = values, {}
        for bind, name in self._fed:
            bind(name, feeds[name])
        for bind, name in self._returned:
            bind(name, values.returned[name])
        return [address_of(values.array(name)) for name in self._slots]

    def output(self) -> dict[str, Any]:
        """The model's outputs of a run that has ended, in memory that belongs to the caller."""
        return {t.name: self._values.output(t) for t in self._installed.compiled.outputs}

    @property
    def in_flight(self) -> Mapping[int, InFlight]:
        """The segments that the latest run has launched, by index."""
        return self._in_flight

    def _bind(self, segment: Segment) -> Bound | None:
        """The segment's program bound to its tensors; None if there is nothing to compute."""
        installed, index = self._installed, segment.index
        program = installed.programs[index]
        if program is None:
            return None
        engine, module = installed.engines[segment.place], installed.compiled.modules[index]
        inputs = {tensor.name: self._input(tensor, engine, index) for tensor in module.inputs}
        outputs = {tensor.name: self._values.tensor(tensor.name) for tensor in module.outputs}
        bound = program.bind(inputs, outputs)
        for tensor in module.inputs:
            if self._is_fed(tensor.name, engine):
                self._fed.append(_Fed(bound.set_input, tensor.name))
            elif self._is_returned(tensor.name, engine):
                self._returned.append(_Fed(bound.set_input, tensor.name))
        for name in outputs:
            if name not in self._allocation.static:
                self._returned.append(_Fed(bound.set_output, name))
        return bound

    def _input(self, tensor: Any, engine: OpenEngine, index: int) -> Any:
        """The tensor that a segment reads a value from, or one of the same kind if the value has to
        be moved in each run."""
        name = tensor.name
        if (index, name) in self._allocation.gathers:
            return self._allocation.gathers[index, name]
        if not self._is_moved(name, engine):
            return self._values.input(name, engine, index)
        key = (name, engine.memory)
        if key not in self._landed:
            self._landed[key] = engine.allocate(tensor)
        return self._landed[key]

    def _is_fed(self, name: str, engine: OpenEngine) -> bool:
        """Whether the engine reads the caller's array."""
        return not self._is_computed(name) and engine.memory.name == MAIN

    def _is_returned(self, name: str, engine: OpenEngine) -> bool:
        """Whether the engine reads an output that is computed in the caller's array."""
        return name in self._values.returned and not self._is_moved(name, engine)

    def _is_moved(self, name: str, engine: OpenEngine) -> bool:
        """Whether a value lies in another memory than the engine that reads it."""
        if name in self._installed.compiled.gathers:
            return False
        home = self._installed.home.get(name)
        return engine.memory.name != MAIN if home is None else home.memory != engine.memory

    def _is_computed(self, name: str) -> bool:
        return name in self._installed.home or name in self._installed.compiled.gathers

    def _steps(self, program: DeviceProgram, natively: bool) -> Iterable[LinkedStep]:
        """The steps of one device.

        Launched segments of a device all have one place. They are waited for where the host or
        another engine may touch their memory, and at the end. If another device waits for one, the
        next segment is launched first if nothing speaks against it, so that the processor goes on.
        """
        segments, ahead = self._installed.compiled.segments, self._installed.ahead
        launched: list[int] = []
        owed: list[int] = []  # launched segments whose event is not signalled yet

        def settled(until: int) -> Iterable[LinkedStep]:
            """Waits for the launched segments up to this one, and their signals."""
            while launched and launched[0] <= until:
                index = launched.pop(0)
                yield from self._waiting(index, natively)
                if index in owed:
                    owed.remove(index)
                    yield LinkedStep(SignalEvent(index), index)

        for step in program.steps:
            match step:
                case Wait(index):
                    yield from settled(owed[-1] if owed else -1)
                    yield LinkedStep(AwaitEvent(index), index)
                case Copy():  # a part of the segment's own steps
                    continue
                case Run(index):
                    fetching = list(self._fetching(segments[index]))
                    alike = launched and segments[launched[0]].place == segments[index].place
                    if fetching or index not in ahead or not alike:
                        yield from settled(len(segments))
                    yield from fetching
                    yield from self._computing(segments[index], natively)
                    if index in ahead:
                        yield from settled(owed[-1] if owed else -1)
                        launched.append(index)
                case Signal(index):
                    if index in launched:
                        owed.append(index)
                    else:
                        yield LinkedStep(SignalEvent(index), index)
        yield from settled(len(segments))

    def _fetching(self, segment: Segment) -> Iterable[LinkedStep]:
        """Steps in which the host writes what a segment reads."""
        bound, index = self._bound[segment.index], segment.index
        if bound is None:
            return
        engine = self._installed.engines[segment.place]
        by_python: list[str] = []
        moved: list[str] = []
        for name in self._installed.inputs(index):
            reading = (index, name)
            if self._is_moved(name, engine):
                moved.append(name)
            elif reading in self._allocation.gathers:
                if reading in self._allocation.in_place or reading in self._allocation.copiers:
                    continue
                copies = self._copies(index, name, engine)
                if copies is None:
                    by_python.append(name)
                else:
                    yield from (LinkedStep(copy, index, True) for copy in copies)
        if moved or by_python:
            fetch = self._fetcher(index, bound, engine, moved, by_python)
            yield LinkedStep(CallPython(fetch), index)

    def _fetcher(
        self,
        index: int,
        bound: Bound,
        engine: OpenEngine,
        moved: Sequence[str],
        gathered: Sequence[str],
    ) -> Callable[[], None]:
        def fetch() -> None:
            for name in gathered:
                self._values.input(name, engine, index)
            for name in moved:
                bound.set_input(name, self._values.input(name, engine, index))

        return fetch

    def _copies(self, index: int, name: str, engine: OpenEngine) -> list[CopyBox] | None:
        """The copies that put a value together, if all of it lies in the host's memory."""
        if engine.memory.name != MAIN:
            return None
        gather = self._installed.compiled.gathers[name]
        target = self._allocation.gathers[index, name]
        copies = []
        for value, taken, put in gather.boxes:
            home = self._installed.home.get(value)
            if home is not None and home.memory.name != MAIN:
                return None
            source = self._values.array(value)
            if source.dtype.hasobject or not source.flags.c_contiguous:
                return None
            into, part = gather.layout.view(target, put), gather.layout.view(source, taken)
            if into.dtype != part.dtype or into.shape != part.shape:
                return None
            if part.size:
                spot = self._spot(value, source, part)
                run_bytes, axes = joined_axes(into, part)
                copies.append(CopyBox(Spot(-1, address_of(into)), spot, run_bytes, tuple(axes)))
        return copies

    def _spot(self, value: str, source: Array, part: Array) -> Spot:
        """Where a part of a value begins."""
        if value in self._allocation.static:
            return Spot(-1, address_of(part))
        slot = self._slots.setdefault(value, len(self._slots))
        return Spot(slot, address_of(part) - address_of(source))

    def _computing(self, segment: Segment, natively: bool) -> Iterable[LinkedStep]:
        bound, index = self._bound[segment.index], segment.index
        if bound is None:  # a step all the same, whose time is the segment's in a trace
            yield LinkedStep(CallPython(_nothing), index, True)
            return
        ahead = index in self._installed.ahead
        launch = _launch(bound)
        for name in self._installed.inputs(index):
            copier = self._allocation.copiers.get((index, name))
            if copier is not None:
                yield from _called(copier, copier, index, natively)
        # An engine in Python may compute with NumPy: infinity and NaN are values here, no warnings.
        own_run = np.errstate(all="ignore")(bound.run)
        run = self._launcher(index, bound) if ahead else own_run
        yield from _called(bound, run, index, natively or launch is None)
        if natively and launch is not None and not ahead:
            yield from self._waiting(index, natively, True)

    def _waiting(self, index: int, natively: bool, computes: bool = False) -> Iterable[LinkedStep]:
        """Steps that wait until a launched segment has ended."""
        launch = _launch(self._bound[index]) if natively else None
        if launch is None:
            yield LinkedStep(CallPython(self._waiter(index)), index)
            return
        for call in launch.native_wait:
            yield LinkedStep(call, index, computes, launch.failure)

    def _launcher(self, index: int, bound: Any) -> Callable[[], None]:
        def launch() -> None:
            self._in_flight[index] = bound.launch()

        return launch

    def _waiter(self, index: int) -> Callable[[], None]:
        def wait() -> None:
            self._in_flight[index].wait()

        return wait


def _called(
    called: object, by_python: Callable[[], object], segment: int, natively: bool
) -> Iterable[LinkedStep]:
    """The calls of C functions that an object offers, or one of Python."""
    native = called if natively and isinstance(called, Native) else None
    calls = () if native is None else native.native
    for call in calls:
        failure = None if native is None else native.failure
        yield LinkedStep(call, segment, True, failure)
    if not calls:
        yield LinkedStep(CallPython(by_python), segment, True)


def _launch(bound: Bound | None) -> NativeLaunch | None:
    """A bound program that C functions launch and wait for; None for others."""
    launch: object = bound
    return launch if isinstance(launch, NativeLaunch) and launch.native else None


def _nothing() -> None:
    pass
