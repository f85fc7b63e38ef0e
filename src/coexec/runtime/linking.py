"""Link a loaded plan: bind its programs to memory, and make steps of a run loop from its order.

The memory belongs to the linked plan. A run that was abandoned gives neither of them back: the next
one links again, so late results of threads and devices are written to memory that is not read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from coexec.arrays import Array, address_of, joined_axes
from coexec.engines.base import (
    Bound,
    BoundInTiles,
    InFlight,
    Native,
    NativeEntrance,
    NativeLaunch,
    OpenEngine,
)
from coexec.errors import DeviceError
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import MAIN, Place
from coexec.plan.program import Copy, DeviceProgram, Run, Signal, Wait, device_programs
from coexec.plan.schedule import Segment
from coexec.runtime.allocation import Allocation
from coexec.runtime.loaded_plan import LoadedPlan
from coexec.runtime.recorder import Recorder
from coexec.runtime.steps import (
    AwaitEvent,
    AwaitWord,
    CallPython,
    ComputeTiles,
    CopyBox,
    LoopStep,
    SetWord,
    SignalEvent,
    Spot,
    TileTeam,
)
from coexec.runtime.transfers import Landed, Transfers
from coexec.timing.trace import Detail
from coexec.units import format_bytes


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


class _Words:
    """A word for each segment of a plan, in the host's memory, that host and device read and
    set."""

    def __init__(self, engine: OpenEngine, segments: int) -> None:
        self._tensor = engine.allocate(Tensor("words", (segments,), "int32"))
        self.array = engine.host_array(self._tensor)

    def address(self, segment: int) -> int:
        return address_of(self.array) + segment * self.array.itemsize


class LinkedPlan:
    """Bound programs and their memory, for one run at a time."""

    def __init__(
        self,
        installed: LoadedPlan,
        allocation: Allocation,
        feeds: Mapping[str, Any],
        make_team: Callable[[int], TileTeam],
    ) -> None:
        """
        Args:
            allocation: used by this linked plan alone.
            feeds: of the first run.
            make_team: makes a team of so many threads.
        """
        self._installed = installed
        self._allocation = allocation
        self._landed: Landed = dict(allocation.landed)
        self._values = Transfers(installed, self._allocation, self._landed, feeds, Recorder())
        """The values of the current run."""
        self._fed: list[_Fed] = []
        self._returned: list[_Fed] = []
        self._slots: dict[str, int] = {}
        """Numbers of the values whose memory is the caller's and that boxes are copied from."""
        self._in_flight: dict[int, InFlight] = {}
        """The launched segments of the current run."""
        self._entering: dict[int, list[CopyBox]] = {}
        """By segment that C functions launch: the copies by which the host writes its inputs."""
        self._bound = [self._bind(segment) for segment in installed.compiled.segments]
        self.teams: dict[str, TileTeam] = {}
        """By device, the team that computes its tiled segments, whose threads others start."""
        self._tiled = dict(self._in_tiles(make_team))
        """The steps of the tiled segments, with the launches of each."""
        compiled = installed.compiled
        self._programs = device_programs(compiled.segments, compiled.transfers)
        self._words = {p: _Words(installed.engines[p], self.events) for p in self._worded_places()}
        self._told = self._words_to_set()
        """By segment: the words to set at its end, for devices that wait for it."""

    def programs(self, launches_natively: bool) -> tuple[tuple[LinkedStep, ...], ...]:
        """The steps of each device, in the order of `LoadedPlan.used`.

        Args:
            launches_natively: False: Python launches, so that `in_flight` and the engine know when
                a segment was computed.
        """
        return tuple(tuple(self._steps(each, launches_natively)) for each in self._programs)

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
        for words in self._words.values():
            words.array[...] = 0
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
        if isinstance(bound, NativeEntrance):
            self._enter(segment, bound)
        return bound

    def _enter(self, segment: Segment, bound: NativeEntrance) -> None:
        """Let C functions launch a segment, if it meets no other device and no Python is needed to
        write what it reads of the host."""
        installed, index = self._installed, segment.index
        engine = installed.engines[segment.place]
        gathered = {name for reader, name in self._allocation.gathers if reader == index}
        if gathered or len(installed.used) > 1 or not installed.tensor_caching:
            return
        names = [name for name in installed.inputs(index) if self._is_moved(name, engine)]
        copies: list[CopyBox] = []
        for name in names:
            source = self._host_array(name)
            into = engine.host_array(self._landed[name, engine.memory])
            if source is None or source.dtype != into.dtype or not source.flags.c_contiguous:
                return
            copies += self._copy(name, source, source, into)
        bound.enter(names)
        if _launch(bound) is not None:
            self._entering[index] = copies

    def _in_tiles(
        self, make_team: Callable[[int], TileTeam]
    ) -> Iterator[tuple[int, tuple[ComputeTiles, BoundInTiles]]]:
        bounds: list[object] = [*self._bound]
        for segment, bound in zip(self._installed.compiled.segments, bounds, strict=True):
            if isinstance(bound, BoundInTiles):
                device = segment.device
                if device not in self.teams:
                    cores = self._installed.team_cores(device)
                    self.teams[device] = make_team(max(1, len(cores)))
                team = self.teams[device]
                try:
                    number = team.add(bound.launches, len(bound.pointers))
                except MemoryError:
                    raise _no_memory(device, bound) from None
                yield segment.index, (ComputeTiles(team, number, bound.pointers), bound)

    def details(self) -> Iterator[Detail]:
        """The tiles of the latest timed run."""
        for index, (step, bound) in self._tiled.items():
            device = self._installed.compiled.segments[index].device
            spans = iter(step.team.spans(step.number))
            for launch in bound.launches:
                for begin_s, end_s, _ in islice(spans, len(launch.tiles)):
                    times_s = begin_s, begin_s, begin_s, end_s
                    yield Detail(launch.name, device, "tile", *times_s, launch.result)

    def _input(self, tensor: Any, engine: OpenEngine, index: int) -> Any:
        """The tensor that a segment reads a value from, or one of the same kind if the value has to
        be moved in each run."""
        name = tensor.name
        if (index, name) in self._allocation.gathers:
            return self._allocation.gathers[index, name]
        if self._is_shown(name, engine):
            return self._host_array(name)
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

    def _is_shown(self, name: str, engine: OpenEngine) -> bool:
        """Whether an engine of the host reads a value of a device where it leaves the device."""
        home = self._installed.home.get(name)
        shown = home is not None and self._installed.sets_words(home)
        return shown and engine.memory.name == MAIN

    def _host_array(self, name: str) -> Array | None:
        """The array in the host's memory that has a value when the event of its segment was
        signalled; None if it has to be downloaded."""
        home = self._installed.home.get(name)
        if home is None or home.memory.name == MAIN:
            return self._values.array(name)
        if self._installed.sets_words(home):
            return home.host_array(self._allocation.static[name])
        return None

    def _is_moved(self, name: str, engine: OpenEngine) -> bool:
        """Whether a value lies in another memory than the engine that reads it."""
        if name in self._installed.compiled.gathers or self._is_shown(name, engine):
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

        Segments that are launched early do not wait here for other devices, and those that set a
        word at their end are not waited for to tell other devices.
        """
        segments, ahead = self._installed.compiled.segments, self._installed.ahead
        early, worded = self._installed.early, self._installed.worded
        launched: list[int] = []
        owed: list[int] = []  # launched segments whose event is not signalled yet
        before: list[int] = []  # segments of other devices that come before the next one
        written: set[str] = set()  # values of the host that early segments have fetched

        def settled(until: int) -> Iterable[LinkedStep]:
            """Waits for the launched segments up to this one, and their signals."""
            while launched and launched[0] <= until:
                index = launched.pop(0)
                yield from self._waiting(index, natively)
                yield from self._handing_over(index)
                if index in owed:
                    owed.remove(index)
                    yield from self._signalling(index)

        for step in program.steps:
            match step:
                case Wait(index):
                    before.append(index)
                case Copy():  # a part of the segment's own steps
                    continue
                case Run(index):
                    for other in () if index in early else before:
                        # It may wait for the words of all that was launched. A device that fails
                        # sets none, and only a wait for the device tells that.
                        told = worded.intersection(launched).union(owed)
                        yield from settled(max(told, default=-1))
                        yield self._awaiting(other)
                    fetching = list(self._fetching(segments[index], natively))
                    alike = launched and segments[launched[0]].place == segments[index].place
                    if (fetching and index not in early) or index not in ahead or not alike:
                        yield from settled(len(segments))
                    yield from fetching
                    words = self._launch_words(index, before, written)
                    yield from self._computing(segments[index], natively, words)
                    before.clear()
                    if index in ahead:
                        yield from settled(owed[-1] if owed else -1)
                        launched.append(index)
                    else:
                        yield from self._handing_over(index)
                case Signal(index) if index in worded:
                    continue
                case Signal(index):
                    if index in launched:
                        owed.append(index)
                    else:
                        yield from self._signalling(index)
        yield from settled(len(segments))

    def _worded_places(self) -> set[Place]:
        return {self._installed.compiled.segments[i].place for i in self._installed.worded}

    def _words_to_set(self) -> dict[int, list[int]]:
        """By segment: addresses of the words to set at its end."""
        addresses: dict[int, list[int]] = {}
        for program in self._programs:
            before: list[int] = []
            for step in program.steps:
                if isinstance(step, Wait):
                    before.append(step.segment)
                elif isinstance(step, Run):
                    for index in before if step.segment in self._installed.early else ():
                        addresses.setdefault(index, []).append(self._word(step.segment, index))
                    before.clear()
        return addresses

    def _word(self, reader: int, index: int) -> int:
        """The address of the word of a segment, for the device of ``reader``."""
        return self._words[self._installed.compiled.segments[reader].place].address(index)

    def _launch_words(
        self, index: int, before: Sequence[int], written: set[str]
    ) -> Mapping[str, Any]:
        """The arguments with which a segment is launched.

        Args:
            before: the segments of other devices that come before it.
            written: the values of the host that earlier segments of the device fetch. Those that
                this one fetches are added.
        """
        if index not in self._installed.worded:
            return {}
        arguments: dict[str, Any] = {"end_word": self._word(index, index)}
        if index in self._installed.early:
            memory = self._installed.engines[self._installed.compiled.segments[index].place].memory
            names = {
                n for n in self._installed.inputs(index) if (n, memory) in self._allocation.landed
            }
            arguments |= {
                "written": names - written,
                "words": [self._word(index, other) for other in before],
            }
            written |= names
        return arguments

    def _awaiting(self, index: int) -> LinkedStep:
        """The step that waits for the end of a segment of another device."""
        if index in self._installed.worded:
            return LinkedStep(AwaitWord(self._word(index, index)), index)
        return LinkedStep(AwaitEvent(index), index)

    def _signalling(self, index: int) -> Iterable[LinkedStep]:
        """The steps that tell other devices that a segment has ended."""
        for address in self._told.get(index, ()):
            yield LinkedStep(SetWord(address), index)
        yield LinkedStep(SignalEvent(index), index)

    def _handing_over(self, index: int) -> Iterable[LinkedStep]:
        """Copies of what a segment of the host has computed to devices that wait for a word, where
        it was not computed there."""
        for tensor in self._installed.compiled.modules[index].outputs:
            for (name, _), into in self._allocation.entrances.items():
                if name == tensor.name and into is not self._allocation.static.get(name):
                    source = self._values.array(name)
                    copies = self._copy(name, source, source, into)
                    yield from (LinkedStep(copy, index, True) for copy in copies)

    def _fetching(self, segment: Segment, natively: bool) -> Iterable[LinkedStep]:
        """Steps in which the host writes what a segment reads."""
        bound, index = self._bound[segment.index], segment.index
        if bound is None:
            return
        if natively and index in self._entering:
            yield from (LinkedStep(copy, index, True) for copy in self._entering[index])
            return
        engine = self._installed.engines[segment.place]
        by_python: list[str] = []
        moved: list[str] = []
        for name in self._installed.inputs(index):
            reading = (index, name)
            if index in self._installed.early and name in self._installed.home:
                continue  # it is there when the words are set
            if self._is_moved(name, engine):
                moved.append(name)
            elif reading in self._allocation.gathers:
                if reading in self._allocation.in_place:
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
            source = self._host_array(value)
            if source is None or source.dtype.hasobject or not source.flags.c_contiguous:
                return None
            into, part = gather.layout.view(target, put), gather.layout.view(source, taken)
            if into.dtype != part.dtype or into.shape != part.shape:
                return None
            copies += self._copy(value, source, part, into)
        return copies

    def _copy(self, value: str, source: Array, part: Array, into: Array) -> list[CopyBox]:
        """The copy of a part of a value; none if it has no elements.

        Args:
            source: the value, of which ``part`` is a view.
        """
        if not part.size:
            return []
        run_bytes, axes = joined_axes(into, part)
        spot = self._spot(value, source, part)
        return [CopyBox(Spot(-1, address_of(into)), spot, run_bytes, tuple(axes))]

    def _spot(self, value: str, source: Array, part: Array) -> Spot:
        """Where a part of a value begins."""
        if value in self._allocation.static:
            return Spot(-1, address_of(part))
        slot = self._slots.setdefault(value, len(self._slots))
        return Spot(slot, address_of(part) - address_of(source))

    def _computing(
        self, segment: Segment, natively: bool, words: Mapping[str, Any]
    ) -> Iterable[LinkedStep]:
        """``words``: the arguments with which it is launched."""
        bound, index = self._bound[segment.index], segment.index
        if bound is None:  # a step all the same, whose time is the segment's in a trace
            yield LinkedStep(CallPython(_nothing), index, True)
            return
        if index in self._tiled:
            yield LinkedStep(self._tiled[index][0], index, True)
            return
        ahead = index in self._installed.ahead
        launch = _launch(bound)
        # An engine in Python may compute with NumPy: infinity and NaN are values here, no warnings.
        own_run = np.errstate(all="ignore")(bound.run)
        run = self._launcher(index, bound, words) if ahead else own_run
        waits = index in self._installed.worded  # for room in the stream, behind waits for words
        yield from _called(bound, run, index, natively or launch is None, waits)
        if natively and launch is not None and not ahead:
            yield from self._waiting(index, natively, True)

    def _waiting(self, index: int, natively: bool, computes: bool = False) -> Iterable[LinkedStep]:
        """Steps that wait until a launched segment has ended."""
        launch = _launch(self._bound[index]) if natively else None
        if launch is None:
            waits = index in self._installed.worded  # it may wait for words of this loop
            yield LinkedStep(CallPython(self._waiter(index), waits), index)
            return
        for call in launch.native_wait:
            yield LinkedStep(call, index, computes, launch.failure)

    def _launcher(self, index: int, bound: Any, words: Mapping[str, Any]) -> Callable[[], None]:
        def launch() -> None:
            self._in_flight[index] = bound.launch(**words)

        return launch

    def _waiter(self, index: int) -> Callable[[], None]:
        def wait() -> None:
            self._in_flight[index].wait()

        return wait


def _called(
    called: object,
    by_python: Callable[[], object],
    segment: int,
    natively: bool,
    waits: bool = False,
) -> Iterable[LinkedStep]:
    """The calls of C functions that an object offers, or one of Python, which may wait."""
    native = called if natively and isinstance(called, Native) else None
    calls = () if native is None else native.native
    for call in calls:
        failure = None if native is None else native.failure
        yield LinkedStep(call, segment, True, failure)
    if not calls:
        yield LinkedStep(CallPython(by_python, waits), segment, True)


def _launch(bound: object) -> NativeLaunch | None:
    """A bound program that C functions launch and wait for; None for others."""
    return bound if isinstance(bound, NativeLaunch) and bound.native else None


def _nothing() -> None:
    pass


def _no_memory(device: str, bound: BoundInTiles) -> DeviceError:
    most = max(bound.launches, key=lambda launch: launch.memory_bytes)
    return DeviceError(
        f"{device} cannot compute {most.result!r}: each of its threads needs "
        f"{format_bytes(most.memory_bytes)} of memory for the kernel {most.name}, and there is not "
        f"as much; give it fewer cores, or use another engine"
    )
