"""Run a compiled plan on real devices: a thread for each, driven by `schedule.Progress`.

Segments that are launched ahead are launched by any of the threads (`coexec.runtime.launching`).

Ownership:

* A request holds the *turn* while it is inside of `Executor.run`. Other requests wait.
* A run owns the *buffers*. It takes them from the executor and returns them as its last action,
  after its outputs were copied. A run that an exception leaves at any bytecode does not return
  them, and the next run allocates new ones. So late results of an interrupted run, of threads and
  of devices, are written to memory that is not read again, and incomplete bindings are never used.
* A thread owns a job from the moment at which it takes the job from a queue. A job names its run.
  Jobs of a stopped run are dropped.
* The executor owns the threads. Before each run, it replaces threads that have ended.

Every wait for a thread has a time limit or checks regularly that the thread is alive. A wait for a
driver has no time limit.
"""

import os
import time
import weakref
from collections.abc import Mapping, Sequence
from queue import Empty
from typing import Any

from coexec.engines.base import OpenEngine, Timed
from coexec.engines.opened import OpenDevice
from coexec.errors import ClosedError, CoexecError, DeviceError, UnfinishedError
from coexec.plan.schedule import Progress
from coexec.runtime import process_fork
from coexec.runtime.buffers import Buffers
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.core_spinner import Awake
from coexec.runtime.loaded_plan import Installing, LoadedPlan
from coexec.runtime.recorder import Recorder
from coexec.runtime.run import OngoingRun
from coexec.runtime.run_lock import RunLock
from coexec.runtime.runner import Cancelled
from coexec.runtime.workers import LOOK_S, Workers, bind_thread
from coexec.settings import Waiting

__all__ = ["Executor"]

_NOTHING = Recorder()
_REST_S = 60.0
"""Seconds to wait for the segments of an interrupted run, before their device counts as hung."""


class Executor:
    """A compiled plan with its programs, buffers and threads.

    `run` may be called from several threads; the requests take turns. Close it, or use it in a
    ``with`` statement: each device keeps a thread until then.
    """

    def __init__(
        self,
        compiled: CompiledPlan,
        devices: Sequence[OpenDevice],
        *,
        waiting: Waiting = "passive",
        tensor_caching: bool = True,
        launch_ahead: bool = True,
        installing: Installing | None = None,
    ) -> None:
        """Compile the modules and start a thread for each device that has something to do.

        Args:
            waiting: whether the cores of several devices are kept awake during a run ("active",
                see `awake`), or may halt while a device waits for another one ("passive").
            tensor_caching: False: each segment that reads a tensor in another memory moves it
                again, right before the segment starts. To measure the gain of caching and
                prefetching.
            launch_ahead: False: the thread of each device waits for each segment that it has
                launched. To measure the gain of launching ahead.
            installing: called after each compiled segment. An exception that it raises ends the
                compilation.

        Raises:
            DeviceError: a device of the plan is missing, or cannot compile its part.
        """
        self._compiled = compiled
        self._devices = tuple(devices)
        self._caching, self._launch_ahead = tensor_caching, launch_ahead
        self._installed: LoadedPlan | None = self._install(installing)
        self._buffers: Buffers | None = Buffers(self._installed)
        self._progress = Progress(compiled.segments)
        self._callers = self._served_by_caller(self._installed)
        cores = {name: self._installed.thread_cores(name) for name in self._installed.used}
        self._callers_cores = cores.pop(self._callers, set())
        self._engines: Sequence[OpenEngine] = tuple(self._installed.engines.values())
        self._timed = [engine for engine in self._engines if isinstance(engine, Timed)]
        self._turn = RunLock()
        self._latest: OngoingRun | None = None
        self._refusal: CoexecError | None = None
        """Error that all later requests raise; None while the executor works."""
        self._workers = Workers(cores)
        self._waiting = waiting
        self._awake: Awake | None = self._keep_awake(self._installed)
        # Ends the threads when the executor is collected, and when the program ends.
        weakref.finalize(self, self._workers.end)
        self._workers.complete()
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
            cancelled: called before each segment; the run ends when it returns True. None: the run
                is never cancelled.

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
        turn = self._turn
        turn.refuse_nested()
        try:
            try:
                turn.take()
                return self._run(feeds, recorder or _NOTHING, cancelled)
            finally:
                turn.give_back()
        finally:
            turn.give_back()  # an exception may have interrupted the first one

    def _run(
        self, feeds: Mapping[str, Any], recorder: Recorder, cancelled: Cancelled | None
    ) -> dict[str, Any]:
        self._refuse()
        installed = self._installed = self._installed or self._install()
        workers = self._workers.complete()
        awake = self._awake = self._awake or self._keep_awake(installed)
        buffers, self._buffers = self._buffers, None
        if buffers is None:  # the latest run was interrupted
            self._come_to_rest()
            buffers = Buffers(installed)
        timed = self._timed if recorder.wants_details() else []
        for engine in timed:
            engine.start_timing()
        recorder.start(self._callers)
        run = self._latest = OngoingRun(
            installed, buffers, self._progress.again(), feeds, recorder, workers, cancelled
        )
        try:
            awake.begin()
            self._serve(run)
        finally:
            try:
                awake.end()
            finally:
                awake.end()  # an exception may have interrupted the first one
        outputs = run.output()
        for engine in timed:
            recorder.add(engine.stop_timing())
        self._buffers = buffers
        if self._refusal is not None:  # closed meanwhile by a signal handler
            self._workers.end()
        return outputs

    def _serve(self, run: OngoingRun) -> None:
        """Start a run and do the jobs of one device in the caller's thread, until the run ends."""
        cores = self._callers_cores
        before = os.sched_getaffinity(0) if cores else cores
        try:
            try:
                if before != cores:
                    bind_thread(cores)
                run.start(self._callers)
                self._work_off(run)
                run.wait(self._callers)
            finally:
                run.stopped = True
                if before != cores:
                    os.sched_setaffinity(0, before)
                    before = cores
        finally:  # an exception may have interrupted the first one
            run.stopped = True
            if before != cores:
                os.sched_setaffinity(0, before)
        if run.error is not None:
            raise run.error

    def _work_off(self, run: OngoingRun) -> None:
        if not self._callers:
            return
        while True:
            try:
                job = run.inbox.get(timeout=LOOK_S)
            except Empty:
                _refuse_dead(run)
                continue
            if job is None:
                return
            run.advance(job, self._callers)

    def _install(self, installing: Installing | None = None) -> LoadedPlan:
        return LoadedPlan(
            self._compiled, self._devices, self._caching, self._launch_ahead, installing
        )

    def _served_by_caller(self, installed: LoadedPlan) -> str:
        """The device whose jobs the caller's own thread does.

        It is the device that ends last, which saves two hand-overs between threads. A device whose
        segments a thread has to run is preferred to a device whose segments are launched ahead.
        """
        segments = self._compiled.segments
        run = [s.device for s in segments if s.index not in installed.ahead]
        return next(reversed(run or [s.device for s in segments]), "")

    def _keep_awake(self, installed: LoadedPlan) -> Awake:
        return Awake(installed.shared_cores if self._waiting == "active" else ())

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _come_to_rest(self) -> None:
        """Wait until all threads and devices have ended their work for an interrupted run.

        Raises:
            ClosedError: a device does not end its work in time.
        """
        end_s = time.monotonic() + _REST_S
        if self._latest is not None:
            self._latest.stopped = True
        restless = self._workers.restless(end_s) or next(
            (engine.device.name for engine in self._engines if not engine.rests(end_s)), None
        )
        if restless is not None:
            self._refusal = ClosedError(
                f"{restless} has not ended what it began more than {_REST_S:.0f} s ago for a run "
                f"that was interrupted; make a new session, without this device if it hangs"
            )
            self._refuse()
        for engine in self._timed:
            engine.stop_timing()

    def close(self) -> None:
        """End the threads. The devices stay open.

        Waits for a run of another thread. Called by a signal handler of the thread that runs, it
        stops that run, which then raises ClosedError. May be called again.
        """
        self._refusal = self._refusal or ClosedError("the session is closed; make a new one")
        if self._turn.is_mine:
            if self._latest is not None:
                self._latest.fail(ClosedError("the session was closed during this run"))
        else:
            self._turn.wait(_REST_S)
        self._workers.end()
        if self._awake is not None:
            self._awake.close()

    def after_fork(self) -> None:
        """Drop the threads and the programs that need threads, in a forked child."""
        if self._latest is not None and not self._latest.stopped:
            self._latest.fail(
                ClosedError("the process was forked during this run; its child has to run again")
            )
        if any(engine.after_fork != "works" for engine in self._engines):
            process_fork.keep_for_ever(
                (self._installed, self._devices, self._latest, self._buffers)
            )
            self._installed = None
        self._turn, self._latest, self._buffers = RunLock(), None, None
        self._workers.forget()
        self._awake = None
        lost = [engine.place for engine in self._engines if engine.after_fork == "lost"]
        if lost:
            self._refusal = DeviceError(
                f"{lost[0]} was opened by the process that os.fork copied, and does not work in "
                f"the child; start the child with multiprocessing's method 'spawn', or leave this "
                f"device out"
            )

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_dead(run: OngoingRun) -> None:
    """Raise UnfinishedError if a thread that the run waits for has ended."""
    for name, worker in run.workers.items():
        if not worker.alive and not run.stopped:
            raise UnfinishedError(
                f"the thread of {name} has ended, the run cannot finish; run again"
            )
