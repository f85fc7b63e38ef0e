"""The run loop in Python, for machines without a compiler, and as the reference of the C++ loop.

It carries out the same steps as native/loop.hpp. Threads wait at queues, which no exception can
leave locked: a signal handler may raise at any bytecode of `run`.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter

import numpy as np

from coexec.arrays import Array
from coexec.engines.base import NativeCall
from coexec.runtime.steps import (
    AwaitEvent,
    AwaitWord,
    CallPython,
    ComputeTiles,
    CopyBox,
    LoopStep,
    Outcome,
    SetWord,
    SignalEvent,
    Spot,
)

MOST_ARGUMENTS = 14
_LOOK_S = 0.01
"""Longest time between two looks of the caller's thread."""
_REST_S = 0.1
"""Seconds after which a thread that waits looks whether the loop has ended."""
_PAUSE_S = 0.0002
_WORD_S, _LONGEST_WORD_S = 0.00005, 0.0005
"""Seconds between the first two looks at a word that another processor sets, and the longest."""


class TwinLoop:
    """A `RunLoop` whose steps are interpreted. They do not refer to the loop, so that what they use
    is given back with it."""

    def __init__(
        self,
        programs: Sequence[Sequence[LoopStep]],
        caller: int,
        events: int,
        slots: int,
        spin_s: float,
    ) -> None:
        """
        Args:
            programs: of all devices, in order.
            caller: the device whose program the caller's thread carries out.
            events: number of events.
            slots: number of slots.
            spin_s: not used: a thread of Python that spins would keep the others from running.
        """
        devices = range(len(programs))
        if caller not in devices:
            raise ValueError("the caller's device has no program")
        self._caller, self._slot_count = caller, slots
        self._slots: list[int] = []
        self._process = os.getpid()
        self._programs = [[self._prepared(step, events) for step in p] for p in programs]
        steps = [(device, *each) for device in devices for each in enumerate(programs[device])]
        self._only_waits = {
            (device, index)
            for device, index, step in steps
            if isinstance(step, CallPython) and step.waits
        }
        self._set_words = [step.address for *_, step in steps if isinstance(step, SetWord)]
        """Words that other processors may wait for."""
        self._teams = {step.team for *_, step in steps if isinstance(step, ComputeTiles)}
        self._waiting: list[set[int]] = [set() for _ in range(events)]
        """By event, the devices that wait for it."""
        for device, _, step in steps:
            if isinstance(step, AwaitEvent):
                self._waiting[step.event].add(device)
        self._signalled = [0] * events
        self._bells: list[SimpleQueue[None]] = [SimpleQueue() for _ in devices]
        """By device: rings when something has happened that its thread may wait for."""
        self._run = 0
        self._rested = [0 for _ in devices]
        self._inside: dict[int, int] = {}
        """By device, the thread that is inside of a step."""
        self._ended = self._stopped = self._paused = self._timed = False
        self._outcome: list[Outcome] = []
        self._spans = [[(0.0, 0.0)] * len(program) for program in programs]

    def serve(self, device: int) -> None:
        latest = self._rested[device]
        while not self._ended:
            if self._run != latest:
                latest = self._run
                try:
                    self._follow(device, latest, None)
                finally:
                    self._rested[device] = latest
                    self._bells[self._caller].put(None)
                continue
            self._listen(device, _REST_S)

    def run(
        self,
        slots: Sequence[int],
        look: Callable[[], object] | None = None,
        timed: bool = False,
    ) -> Outcome | None:
        if len(slots) != self._slot_count:
            raise ValueError("a run sets another number of slots than its loop has")
        self._slots[:], self._timed, self._outcome = slots, timed, []
        self._stopped = self._stopped and bool(self._set_words)
        if self._ended:
            return (len(self._programs), 0, 0, None)
        run = self._run + 1
        others = [device for device in range(len(self._programs)) if device != self._caller]
        ended = False
        try:
            self._run = run
            for device in others:
                self._bells[device].put(None)
            ended = self._follow(self._caller, run, look) and self._wait(
                self._caller, lambda: all(self._rested[d] == run for d in others), look
            )
        finally:
            if not ended:
                self.stop()
        self._outcome.append((len(self._programs), 0, 0, None))
        return None if ended else self._outcome.pop(0)  # an error may refer to this loop

    def stop(self) -> None:
        self._stopped = True
        for address in self._set_words:
            _set_word(self._process, address)
        for team in self._teams:
            team.stop()
        for bell in self._bells:
            bell.put(None)

    def end(self) -> None:
        self._ended = True
        self.stop()

    def rests(self, device: int) -> bool:
        return self._ended or self._rested[device] == self._run

    def pause(self) -> None:
        self._paused = True
        for team in self._teams:
            team.pause()

    def pauses(self) -> bool:
        mine = set(self._inside.values()) <= {threading.get_ident()}
        return mine and all(team.pauses() for team in self._teams)

    def go_on(self) -> None:
        for team in self._teams:
            team.go_on()
        self._paused = False

    def spans(self, device: int) -> Sequence[tuple[float, float]]:
        return self._spans[device]

    def _listen(self, device: int, longest_s: float) -> None:
        try:
            self._bells[device].get(timeout=longest_s)
        except Empty:
            return

    def _wait(
        self,
        device: int,
        arrived: Callable[[], bool],
        look: Callable[[], object] | None,
        listen_s: float = _LOOK_S,
    ) -> bool:
        """Wait for something. False if the run was stopped before."""
        look_s = 0.0
        while not (self._stopped or arrived()):
            if look is not None and time.monotonic() >= look_s:
                look()
                look_s = time.monotonic() + _LOOK_S / 2
            self._listen(device, listen_s)
            listen_s = max(listen_s, min(2 * listen_s, _LONGEST_WORD_S))
        return not self._stopped

    def _follow(self, device: int, run: int, look: Callable[[], object] | None) -> bool:
        """Carry out the program of a device. False if the run was stopped."""
        look_s = time.monotonic() + _LOOK_S
        for index, step in enumerate(self._programs[device]):
            if look is not None and time.monotonic() > look_s:
                look()
                look_s = time.monotonic() + _LOOK_S
            if self._stopped:
                return False
            begin_s = perf_counter()
            if isinstance(step, AwaitEvent):
                event = step.event
                if not self._wait(device, lambda: self._signalled[event] == run, look):  # noqa: B023
                    return False
            elif isinstance(step, SignalEvent):
                self._signalled[step.event] = run
                for waiting in self._waiting[step.event]:
                    self._bells[waiting].put(None)
            elif isinstance(step, AwaitWord):
                word = ctypes.c_uint32.from_address(step.address)
                if not self._wait(device, lambda: word.value != 0, look, _WORD_S):  # noqa: B023
                    return False
            elif isinstance(step, ComputeTiles):
                if not self._computed(step, look):
                    self.stop()
                    return False
            elif not self._carried_out(device, index, step):
                return False
            if self._timed:
                self._spans[device][index] = begin_s, perf_counter()
        return True

    def _computed(self, step: ComputeTiles, look: Callable[[], object] | None) -> bool:
        """Compute with a team. False if the run was stopped."""

        def looks() -> None:
            if self._stopped:  # perhaps before the team had begun
                step.team.stop()
            elif look is not None:
                look()

        return step.team.run(step.number, step.pointers.tolist(), looks, self._timed)

    def _carried_out(self, device: int, index: int, step: Callable[[], int | None]) -> bool:
        """Do the work of a step that meets no other device. False if it failed, or if the run was
        stopped during a pause."""
        inside, me = self._inside, threading.get_ident()
        result, failed = 0, None
        only_waits = (device, index) in self._only_waits
        try:
            if not only_waits:
                inside[device] = me
            while self._paused and not only_waits:
                inside.pop(device, None)
                time.sleep(_PAUSE_S)
                if self._stopped:
                    return False
                inside[device] = me
            result = step() or 0
        except Exception as error:
            failed = error
        finally:
            inside.pop(device, None)
        if result == 0 and failed is None:
            return True
        self._outcome.append((device, index, result, failed))
        failed = None  # the error has this frame
        self.stop()
        return False

    def _prepared(
        self, step: LoopStep, events: int
    ) -> AwaitEvent | SignalEvent | AwaitWord | ComputeTiles | Callable[[], int | None]:
        """The step, or a function that does its work."""
        match step:
            case ComputeTiles() | AwaitWord():
                return step
            case SetWord():
                return partial(_set_word, self._process, step.address)
            case AwaitEvent() | SignalEvent():
                if step.event >= events:
                    raise IndexError("a step names an event that the loop has not")
                return step
            case NativeCall():
                if len(step.arguments) > MOST_ARGUMENTS:
                    raise ValueError("a native step has too many arguments")
                result = ctypes.c_ssize_t if step.returns_pointer else ctypes.c_int
                kinds = [ctypes.c_ssize_t] * len(step.arguments)
                function = ctypes.CFUNCTYPE(result, *kinds)(step.function)
                return partial(function, *step.arguments)
            case CallPython():
                return partial(_without_result, step.function)
            case CopyBox():
                if max(step.target.slot, step.source.slot) >= self._slot_count:
                    raise IndexError("a step names a slot that the loop has not")
                return partial(_copy, self._slots, step)


def _set_word(process: int, address: int) -> None:
    if os.getpid() == process:  # a forked child may not have the memory
        ctypes.c_uint32.from_address(address).value = 1


def _copy(slots: Sequence[int], step: CopyBox) -> None:
    sizes = (*(axis[0] for axis in step.axes), step.run_bytes)
    target = _box(slots, step.target, sizes, [axis[1] for axis in step.axes])
    target[...] = _box(slots, step.source, sizes, [axis[2] for axis in step.axes])


def _box(slots: Sequence[int], spot: Spot, sizes: tuple[int, ...], strides: Sequence[int]) -> Array:
    address = spot.offset + (slots[spot.slot] if spot.slot >= 0 else 0)
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=False))
    memory = memoryview((ctypes.c_uint8 * (last + sizes[-1])).from_address(address))
    return np.ndarray(sizes, np.uint8, memory, 0, (*strides, 1))


def _without_result(function: Callable[[], object]) -> None:
    function()
