"""Run a compiled plan on real devices: straight programs of steps, one thread for each device.

Ownership:

* A request holds the *lock* while it is inside of `Executor.run`. Other requests wait.
* A run owns the *linked plan*, with its memory, its loop and the loop's threads. It takes them from
  the executor and returns them as its last action, after its outputs were copied. A run that an
  exception leaves at any bytecode does not return them, and the next run links again. So late
  results of an interrupted run, of threads and of devices, are written to memory that is not read
  again, and incomplete bindings are never used.
* An abandoned run comes to rest before the next one begins: all threads have left it, and all
  devices have ended their work.

The caller's thread looks for signals, cancellation and ended threads at least every 10 ms, except
while it computes a segment. A wait for a driver has no time limit.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.errors import (
    ClosedError,
    CoexecError,
    ExecutionError,
    ForkedError,
    InputError,
    TerminatedError,
    UnfinishedError,
)
from coexec.plan.schedule import Segment
from coexec.runtime import process_fork
from coexec.runtime.allocation import Allocation, allocated
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.device_threads import DeviceThreads, bind_thread
from coexec.runtime.linking import LinkedPlan, LinkedStep
from coexec.runtime.loaded_plan import Installing, LoadedPlan
from coexec.runtime.loops import loop_class, team_class
from coexec.runtime.recorder import Recorder
from coexec.runtime.run_lock import RunLock
from coexec.runtime.runner import Cancelled
from coexec.runtime.steps import Outcome, RunLoop
from coexec.settings import Waiting

_NOTHING = Recorder()
_REST_S = 60.0
"""Seconds to wait for the segments of an interrupted run, before their device counts as hung."""
_SPIN_S: Mapping[Waiting, float] = {"active": 1e-3, "passive": 20e-6}
"""Seconds for which a waiting thread keeps its core busy before it sleeps."""


class _Crew(NamedTuple):
    """A loop with its threads."""

    programs: Sequence[Sequence[LinkedStep]]
    loop: RunLoop
    threads: DeviceThreads


class _Linked(NamedTuple):
    """What one run at a time owns."""

    plan: LinkedPlan
    crews: dict[bool, _Crew]
    """By whether runs are recorded. Made when needed; one for both if nothing differs."""
    lock: RunLock
    """Of its process. A forked child has another one, and no threads of this."""
    teams: Sequence[DeviceThreads]
    """Those of the plan's teams, but for the threads of crews."""

    def end(self) -> None:
        """End all threads, and wait for them for a limited time."""
        for crew in self.crews.values():
            crew.threads.end()
        for threads in self.teams:
            threads.end()


class Executor:
    """A compiled plan with its programs, memory and threads.

    `run` may be called from several threads; the requests take turns. Close it, or use it in a
    ``with`` statement: each device keeps a thread from the first run until then.
    """

    def __init__(
        self,
        compiled: CompiledPlan,
        devices: Sequence[OpenDevice],
        *,
        waiting: Waiting = "passive",
        tensor_caching: bool = True,
        installing: Installing | None = None,
    ) -> None:
        """Compile the modules.

        Args:
            waiting: whether a device that waits for another one keeps its core busy for up to a
                millisecond ("active"), or soon lets it halt ("passive").
            tensor_caching: False: each segment that reads a tensor in another memory moves it
                again. To measure the gain of caching.
            installing: called after each compiled segment. An exception that it raises ends the
                compilation.

        Raises:
            DeviceError: a device of the plan is missing, or cannot compile its part.
        """
        self._compiled = compiled
        self._devices = tuple(devices)
        self._caching = tensor_caching
        self._spin_s = _SPIN_S[waiting]
        self._make_loop, self._make_team = loop_class(), team_class()
        self._installed: LoadedPlan | None = self._install(installing)
        self._allocation: Allocation | None = allocated(self._installed)
        """Memory for the next linked plan, if it was allocated already."""
        self._callers = _served_by_caller(self._installed)
        self._callers_cores = self._installed.thread_cores(self._callers)
        self._engines: Sequence[OpenEngine] = tuple(self._installed.engines.values())
        contexts = (engine.thread_context for engine in self._engines)
        self._thread_context = next((c for c in contexts if c is not None), nullcontext())
        self._lock = RunLock()
        self._linked: _Linked | None = None
        self._latest: _Linked | None = None
        self._crew: _Crew | None = None
        """These two are those of the run under way, or of the latest one."""
        self._paused: _Crew | None = None
        """The crew that waits for the end of a fork. The next run may have another one."""
        self._ended_by: CoexecError | None = None
        """The reason why the run under way was stopped from outside."""
        self._refusal: CoexecError | None = None
        """Error that all later requests raise; None while the executor works."""
        process_fork.watch(self)

    def run(
        self,
        feeds: Mapping[str, Any],
        recorder: Recorder | None = None,
        cancelled: Cancelled | None = None,
    ) -> dict[str, Any]:
        """Run one inference.

        An exception that a signal handler raises during the run is the caller's own. It passes
        through.

        Args:
            feeds: a C-contiguous array of the right shape and dtype for every model input; an
                opaque input as ONNX Runtime takes it.
            recorder: records what ran when. None: nothing is recorded.
            cancelled: called at least every 10 ms, except while the caller's thread computes a
                segment; the run ends when it returns True. None: the run is never cancelled.

        Returns:
            The model's outputs by name, in memory that belongs to the caller; opaque ones as ONNX
            Runtime returns them.

        Raises:
            ExecutionError: a device failed; the message names the tasks.
            ClosedError: the executor was closed.
            DeviceError: a device of the plan does not work in a forked child.
            TerminatedError: ``cancelled`` returned True.
            UnfinishedError: a thread was killed, or the caller is a signal handler during a run.
        """
        self._refuse()
        lock = self._lock
        lock.refuse_nested()
        try:
            try:
                lock.take()
                return self._run(feeds, recorder or _NOTHING, cancelled, lock)
            finally:
                lock.give_back()
        finally:
            lock.give_back()  # an exception may have interrupted the first one

    def _run(
        self,
        feeds: Mapping[str, Any],
        recorder: Recorder,
        cancelled: Cancelled | None,
        lock: RunLock,
    ) -> dict[str, Any]:
        self._refuse()
        installed = self._installed = self._installed or self._install()
        linked, self._linked = self._linked, None
        if linked is None or linked.lock is not lock:  # the latest run was interrupted, or none was
            self._come_to_rest()
            linked = self._link(installed, feeds, lock)
        self._latest, self._ended_by = linked, None
        recorded = recorder is not _NOTHING and linked.plan.launches_natively
        crew = self._crew = linked.crews.get(recorded) or self._gather(installed, linked, recorded)
        if self._lock is not lock:  # in a child of `os.fork`, which a signal handler has called
            self._forget()
            raise _forked()
        everyone = (crew.threads, *linked.teams)
        for threads in everyone:
            threads.complete()  # a fork from here on ends the loop
        timed = self._engines if recorder.wants_details() else []
        for engine in timed:
            engine.start_timing()
        recorder.start(self._callers)
        slots = linked.plan.begin(feeds, recorder)
        look = _looks(everyone, cancelled)
        outcome = None
        try:
            outcome = self._serve(crew.loop, slots, look, recorder is not _NOTHING)
            if outcome is not None:
                raise self._explained(outcome, crew.programs)
        finally:
            outcome = None  # its error has this frame, and would keep the memory of the plan
        if recorder is not _NOTHING:
            _record(crew, linked.plan, recorder)
        outputs = linked.plan.output()
        for engine in timed:
            recorder.add(engine.stop_timing())
        if timed:
            recorder.add([*linked.plan.details()])
        self._linked = linked
        if self._refusal is not None:  # closed meanwhile by a signal handler
            linked.end()
        return outputs

    def _serve(
        self, loop: RunLoop, slots: Sequence[int], look: Callable[[], object], timed: bool
    ) -> Outcome | None:
        """Carry out the programs. The caller's thread carries out the program of one device, and is
        bound to the cores of this device meanwhile."""
        cores = self._callers_cores
        before = os.sched_getaffinity(0) if cores else cores
        ended, outcome = False, None
        try:
            try:
                look()
                if before != cores:
                    bind_thread(cores)
                with self._thread_context:
                    outcome = loop.run(slots, look, timed)
                ended = True
                return outcome
            finally:
                if not ended:
                    loop.stop()
                if before != cores:
                    bind_thread(before)
                    before = cores
        finally:  # an exception may have interrupted the first one
            outcome = None  # as in `_run`
            if not ended:
                loop.stop()
            if before != cores:
                bind_thread(before)

    def _install(self, installing: Installing | None = None) -> LoadedPlan:
        return LoadedPlan(self._compiled, self._devices, self._caching, installing)

    def _link(self, installed: LoadedPlan, feeds: Mapping[str, Any], lock: RunLock) -> _Linked:
        allocation, self._allocation = self._allocation or allocated(installed), None
        make, spin_s = self._make_team, self._spin_s
        plan = LinkedPlan(installed, allocation, feeds, lambda threads: make(threads, spin_s))
        teams = []
        for device, team in plan.teams.items():
            cores = enumerate(installed.team_cores(device))
            others = {number: (device, (core,)) for number, core in cores if number}
            teams.append(DeviceThreads(team, others, plan))
        return _Linked(plan, {}, lock, teams)

    def _gather(self, installed: LoadedPlan, linked: _Linked, recorded: bool) -> _Crew:
        """A loop for runs that are recorded or not, with its threads."""
        plan, names = linked.plan, installed.used
        programs = plan.programs(launches_natively=not recorded)
        caller = names.index(self._callers) if self._callers else 0
        steps = [[linked.step for linked in program] for program in programs] or [[]]
        loop = self._make_loop(steps, caller, plan.events, plan.slot_count, self._spin_s)
        others = {
            device: (name, installed.thread_cores(name))
            for device, name in enumerate(names)
            if device != caller
        }
        crew = linked.crews[recorded] = _Crew(programs, loop, DeviceThreads(loop, others, plan))
        return crew

    def _explained(
        self, outcome: Outcome, programs: Sequence[Sequence[LinkedStep]]
    ) -> BaseException:
        """The error of a run that has not ended."""
        device, index, result, error = outcome
        if device == len(programs):
            return self._ended_by or UnfinishedError("the run was stopped; run again")
        step = programs[device][index]
        segment = self._compiled.segments[step.segment]
        if error is None:  # a C function has returned it
            assert step.failure is not None
            error = step.failure(result)
        if segment.device == self._callers and not isinstance(error, CoexecError):
            return error  # of a signal handler: engines raise only errors of coexec
        if not isinstance(error, Exception):
            return UnfinishedError(
                f"the thread of {segment.device} was ended by {type(error).__name__}; run again"
            )
        return _of_segment(error, segment)

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _come_to_rest(self) -> None:
        """Wait until all threads and devices have ended their work for an interrupted run.

        Raises:
            ClosedError: a device does not end its work in time.
        """
        latest, crew = self._latest, self._crew
        if latest is None or crew is None:
            return
        end_s = time.monotonic() + _REST_S
        crew.loop.stop()
        devices = (e.device.name for e in self._engines if not e.rests(end_s))
        threads = (each.restless(end_s) for each in (crew.threads, *latest.teams))
        restless = next((name for name in chain(threads, devices) if name is not None), None)
        if restless is not None:
            process_fork.keep_for_ever(latest)  # a thread may still write to its memory
            self._refusal = ClosedError(
                f"{restless} has not ended what it began more than {_REST_S:.0f} s ago for a run "
                f"that was interrupted; make a new session, without this device if it hangs"
            )
            self._refuse()
        latest.end()
        self._latest = self._crew = None
        for engine in self._engines:
            engine.stop_timing()

    def close(self) -> None:
        """End the threads. The devices stay open.

        Waits for a run of another thread. Called by a signal handler of the thread that runs, it
        stops that run, which then raises ClosedError. May be called again.
        """
        self._refusal = self._refusal or ClosedError("the session is closed; make a new one")
        if self._lock.is_mine:
            self._stop(ClosedError("the session was closed during this run"))
        else:
            self._lock.wait(_REST_S)
        if self._latest is not None:
            self._latest.end()

    def _stop(self, error: CoexecError) -> None:
        """End the loop of the run under way. Its caller raises the error; the first one counts."""
        self._ended_by = self._ended_by or error
        if self._crew is not None:
            self._crew.loop.end()

    def before_fork(self, end_s: float) -> None:
        """Let all threads end their current step, at most until ``end_s`` of `time.monotonic`."""
        crew = self._paused = self._crew
        if crew is not None:
            crew.loop.pause()
            while not crew.loop.pauses() and time.monotonic() < end_s:
                time.sleep(_PAUSE_S)

    def after_fork_in_parent(self) -> None:
        crew, self._paused = self._paused, None
        if crew is not None:
            crew.loop.go_on()

    def after_fork(self) -> None:
        """End the run under way, and drop what does not work in a forked child."""
        if self._lock.is_mine:
            self._stop(_forked())
        self._forget()
        self._lock = RunLock()
        lost = [engine.place for engine in self._engines if engine.after_fork == "lost"]
        if lost:
            self._refusal = ForkedError(
                f"{lost[0]} was opened by the process that os.fork copied, and does not work in "
                f"the child; start the child with multiprocessing's method 'spawn', or leave this "
                f"device out"
            )

    def _forget(self) -> None:
        """Drop the threads and the programs that need threads, in a forked child."""
        process_fork.keep_for_ever((self._latest, self._linked))
        if any(engine.after_fork != "works" for engine in self._engines):
            process_fork.keep_for_ever((self._installed, self._devices, self._allocation))
            self._installed = self._allocation = None
        self._latest = self._linked = self._crew = None

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_PAUSE_S = 0.0005


def _forked() -> ClosedError:
    return ClosedError("the process was forked during this run; its child has to run again")


def _served_by_caller(installed: LoadedPlan) -> str:
    """The device whose steps the caller's own thread carries out; "" if there is none.

    It is the device that ends last, which saves two hand-overs between threads. A device whose
    segments a thread has to run is preferred to a device whose segments are launched.
    """
    segments = installed.compiled.segments
    run = [s.device for s in segments if s.index not in installed.ahead]
    return next(reversed(run or [s.device for s in segments]), "")


def _looks(everyone: Sequence[DeviceThreads], cancelled: Cancelled | None) -> Callable[[], None]:
    """A function that the caller's thread calls during a run, and that ends it by an exception."""

    def look() -> None:
        if cancelled is not None and cancelled():
            raise TerminatedError("the run was ended by its RunOptions; no result is returned")
        dead = next((name for threads in everyone if (name := threads.dead())), None)
        if dead is not None:
            raise UnfinishedError(
                f"the thread of {dead} has ended, the run cannot finish; run again"
            )

    return look


def _record(crew: _Crew, plan: LinkedPlan, recorder: Recorder) -> None:
    """Tell the recorder when each segment ran."""
    spans: dict[int, tuple[float, float]] = {}
    for device, program in enumerate(crew.programs):
        spans |= _spans(program, crew.loop.spans(device))
    for segment, (begin_s, end_s) in sorted(spans.items(), key=lambda item: item[1][1]):
        recorder.ran(segment, begin_s, end_s, plan.in_flight.get(segment))


def _spans(
    program: Sequence[LinkedStep], times_s: Sequence[tuple[float, float]]
) -> dict[int, tuple[float, float]]:
    """Begin and end of each segment of a program, from those of its steps."""
    spans: dict[int, tuple[float, float]] = {}
    for linked, (begin_s, end_s) in zip(program, times_s, strict=True):
        if linked.computes:
            first_s, _ = spans.get(linked.segment, (begin_s, end_s))
            spans[linked.segment] = first_s, end_s
    return spans


def _of_segment(error: Exception, segment: Segment) -> Exception:
    if isinstance(error, InputError):  # the request is at fault, not the device
        return error
    tasks = ", ".join(piece.task for piece in segment.pieces[:3])
    more = len(segment.pieces) - 3
    where = tasks + (f" and {more} more" if more > 0 else "")
    wrapped = ExecutionError(
        f"{segment.device} failed in segment {segment.index} ({where}): "
        f"{error}; the run was stopped, no result is returned"
    )
    wrapped.device = (error.device if isinstance(error, CoexecError) else "") or segment.device
    wrapped.__cause__ = error if not isinstance(error, CoexecError) else error.__cause__
    return wrapped
