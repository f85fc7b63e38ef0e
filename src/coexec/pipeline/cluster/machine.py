"""A machine of a cluster: it stores weights and sessions of its shares, and computes its part of
each frame.

All methods run in one event loop. Sessions run in a thread of their own, one share after the other,
the oldest frame first; messages come and go meanwhile.
"""

import asyncio
import os
import platform
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coexec.costs.capacity import FLOPS_PER_MAC
from coexec.errors import first_line
from coexec.pipeline.cluster.build import build
from coexec.pipeline.cluster.handles import (
    Event,
    FrameAnswer,
    FrameFailure,
    MachineFacts,
    MachineHandle,
    MachineLostError,
    News,
    Spent,
    Unreached,
    within,
)
from coexec.pipeline.cluster.jobs import MachineJob, ShareKey
from coexec.pipeline.cluster.shares import FrameParts, OpenShares, ShareModel
from coexec.pipeline.plan.flow import Computation, Message

_NEWS_S = 0.5
"""Longest time that `Machine.news` waits for an event."""


@dataclass(frozen=True)
class MachineOptions:
    """How a machine computes."""

    devices: Sequence[str] | None = None
    """Names of devices, as for a session; None: all devices of the machine."""
    planner: str = "auto"
    pace_flops_per_s: float | None = None
    """Emulated capacity of a slower machine: after each computation, sleep until this capacity
    would have ended it."""
    cache: str | None = None
    """Folder for profiles and plans; None: the user's."""
    flops_per_s: float | None = None
    """Stated capacity; None: measured. The same holds for the bandwidth of its port."""
    bandwidth_bytes_per_s: float | None = None


@dataclass
class _FrameState:
    """Data of a frame on this machine, and the state of its steps."""

    number: int
    parts: FrameParts
    missing: dict[int, int]
    """Number of unfinished predecessors, by step."""
    left: int
    """Unfinished steps of this machine, including messages to receive and the answer."""
    done: set[int] = field(default_factory=set)


class _Epoch:
    """A job, and its frames in flight."""

    def __init__(self, number: int, job: MachineJob, peers: Mapping[str, MachineHandle]) -> None:
        self.number, self.job, self.peers = number, job, peers
        self.followers: dict[int, list[int]] = {}
        for step, action in job.steps.items():
            for before in action.after:
                self.followers.setdefault(before, []).append(step)
        self.frames: dict[int, _FrameState] = {}
        self.failed: set[int] = set()

    def frame(self, number: int) -> _FrameState:
        """State of frame ``number``; made on first use."""
        state = self.frames.get(number)
        if state is None:
            missing = {step: len(action.after) for step, action in self.job.steps.items()}
            left = len(self.job.steps) + len(self.job.receives) + bool(self.job.answers_after)
            state = self.frames[number] = _FrameState(number, FrameParts(), missing, left)
        return state


class Machine:
    """One machine, for one session of a cluster."""

    def __init__(self, name: str, options: MachineOptions) -> None:
        self.name = name
        self._options = options
        self._cleanup = ExitStack()
        self._shares = OpenShares(options.devices, options.planner, options.cache, self._cleanup)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coexec-share")
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="coexec-open")
        """Thread for slow work that must not delay the computations."""
        self._epochs: dict[int, _Epoch] = {}
        self._queue: asyncio.PriorityQueue[tuple[int, int, int]] = asyncio.PriorityQueue()
        """Epoch, frame and step of computations that are ready to start."""
        self._events: list[Event] = []
        self._told = asyncio.Event()
        self._computed = Spent()
        self._begun_s: float | None = None
        """`time.perf_counter` at the begin of the running computation; None if none runs."""
        self._sent: dict[str, Spent] = {}
        self._spans: list[tuple[str, int, int, float, float]] | None = None
        self._message_limit_s = 2.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None

    # Before frames come

    async def facts(self) -> MachineFacts:
        """Properties of this machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return MachineFacts(self.name, build(), platform.node(), memory)

    async def lacks(self, digests: Sequence[str]) -> list[str]:
        """Digests of weights that are not stored here yet."""
        return self._shares.lacks(digests)

    async def keep(self, weights: Mapping[str, Any]) -> None:
        """Store weights by their digests.

        Raises:
            ExecutionError: a weight does not match its digest, or there is no room.
        """
        await self._in(self._opener, self._shares.keep, weights)

    async def deploy(
        self,
        epoch: int,
        job: MachineJob,
        models: Mapping[ShareKey, ShareModel],
        peers: Mapping[str, MachineHandle],
        message_limit_s: float,
    ) -> None:
        """Open sessions for the shares of a job. Frames of ``epoch`` may come from then on.

        Args:
            message_limit_s: time limit of a message; a message that was not taken by then is
                reported.
        """
        await self._in(self._opener, self._shares.open, epoch, models)
        self._message_limit_s = message_limit_s
        self._epochs[epoch] = _Epoch(epoch, job, peers)
        if self._worker is None:
            self._worker = self._start(self._work())

    async def drop(self, epoch: int) -> None:
        """Remove an epoch: its frames, and the sessions that no other epoch uses."""
        self._epochs.pop(epoch, None)
        await self._in(self._opener, self._shares.close, epoch)

    async def measure(self, model: ShareModel, repeats: int) -> float:
        """Median seconds of this machine for a share with arbitrary weights."""
        pace = self._options.pace_flops_per_s
        seconds: float = await self._in(self._thread, self._shares.measure, model, repeats)
        return seconds if pace is None else max(seconds, FLOPS_PER_MAC * model.macs / pace)

    async def measure_link(
        self, target: MachineHandle, size_bytes: int, repeats: int
    ) -> list[float]:
        """Seconds of each of several messages to another machine, sent one after the other."""
        seconds = []
        content = np.zeros(size_bytes, np.uint8)
        for _ in range(repeats):
            start = time.perf_counter()
            await target.call("take", content)
            seconds.append(time.perf_counter() - start)
        return seconds

    async def take(self, content: Any) -> None:
        """Receive a message that only measures a link."""

    async def close(self) -> None:
        """Close all sessions, and remove all stored files."""
        for task in self._tasks:
            task.cancel()
        self._epochs.clear()
        self._shares.close_all()
        self._thread.shutdown(wait=False)
        self._opener.shutdown(wait=False)
        self._cleanup.close()

    # Frames

    async def receive(self, epoch: int, frame: int, step: int, arrays: Sequence[Any]) -> None:
        """Store the parts that arrive with a step; ignore them if the epoch was dropped or the
        frame has failed."""
        current = self._epochs.get(epoch)
        if current is None or frame in current.failed:
            return
        state = current.frame(frame)
        if step in state.done:
            return
        state.parts.put(current.job.receives[step], arrays)
        self._ended(current, state, step)

    async def news(self) -> News:
        """Events and sums since the last call; returns after half a second at the latest."""
        if not self._events:
            self._told.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), _NEWS_S)
        events, self._events = self._events, []
        computed, self._computed = self._computed, Spent()
        sent, self._sent = self._sent, {}
        spans = self._spans or []
        if self._spans is not None:
            self._spans = []
        inside = sum(len(epoch.frames) for epoch in self._epochs.values())
        now = time.perf_counter()
        computing_s = 0.0 if self._begun_s is None else now - self._begun_s
        waiting = self._queue.qsize()
        return News(events, computed, sent, waiting, inside, computing_s, now, spans)

    async def trace(self, on: bool) -> float:
        """Switch the recording of steps for `news` on or off; return the time on this machine's
        clock."""
        self._spans = [] if on else None
        return time.perf_counter()

    def _ended(self, epoch: _Epoch, state: _FrameState, step: int) -> None:
        """Mark a step as done, and start the steps for which it was the last predecessor."""
        state.done.add(step)
        state.left -= 1
        for number in epoch.followers.get(step, ()):
            state.missing[number] -= 1
            if state.missing[number] == 0:
                what = epoch.job.steps[number].what
                if isinstance(what, Computation):
                    self._queue.put_nowait((epoch.number, state.number, number))
                else:
                    self._start(self._send(epoch, state, number, what))
        ends = epoch.job.answers_after
        if step in ends and state.done.issuperset(ends):
            self._answer(epoch, state)
        if state.left == 0:
            epoch.frames.pop(state.number, None)

    def _answer(self, epoch: _Epoch, state: _FrameState) -> None:
        outputs = {name: state.parts.get(name, region) for name, region in epoch.job.outputs}
        state.left -= 1
        self._tell(FrameAnswer(epoch.number, state.number, outputs))

    async def _work(self) -> None:
        """Compute the shares in the queue, one after the other."""
        while True:
            number, frame, step = await self._queue.get()
            epoch = self._epochs.get(number)
            state = None if epoch is None else epoch.frames.get(frame)
            if epoch is None or state is None:
                continue
            what = epoch.job.steps[step].what
            assert isinstance(what, Computation)
            try:
                await self._compute(epoch, state, step, what)
            except Exception as error:
                self._fail(epoch, frame, error)
            finally:
                self._begun_s = None

    async def _compute(
        self, epoch: _Epoch, state: _FrameState, step: int, what: Computation
    ) -> None:
        self._begun_s = start = time.perf_counter()
        run = self._shares.run
        arrays = await self._in(self._thread, run, epoch.number, what, state.parts)
        pace = self._options.pace_flops_per_s
        if pace is not None:
            pause_s = FLOPS_PER_MAC * what.strip.macs / pace - (time.perf_counter() - start)
            await asyncio.sleep(max(0.0, pause_s))
        end = time.perf_counter()
        self._computed.add(end - start, what.strip.macs)
        self._note("compute", what.stage, state.number, start, end)
        state.parts.put(what.strip.writes, arrays)
        self._ended(epoch, state, step)

    async def _send(self, epoch: _Epoch, state: _FrameState, step: int, what: Message) -> None:
        start = time.perf_counter()
        try:
            arrays = [state.parts.get(name, region) for name, region in what.parts]
            sent = epoch.peers[what.target].call(
                "receive", epoch.number, state.number, step, arrays
            )
            await within(sent, self._message_limit_s)
        except (TimeoutError, MachineLostError) as error:
            limit = f"took longer than {self._message_limit_s:.1f} s"
            reason = limit if isinstance(error, TimeoutError) else first_line(error)
            if epoch.number in self._epochs:
                self._tell(Unreached(epoch.number, what.target, reason))
            return
        except Exception as error:
            self._fail(epoch, state.number, error)
            return
        end = time.perf_counter()
        self._sent.setdefault(what.target, Spent()).add(end - start, what.size_bytes)
        self._note(f"to {what.target}", what.stage, state.number, start, end)
        self._ended(epoch, state, step)

    def _fail(self, epoch: _Epoch, frame: int, error: Exception) -> None:
        epoch.failed.add(frame)
        epoch.frames.pop(frame, None)
        self._tell(FrameFailure(epoch.number, frame, f"{self.name}: {first_line(error)}"))

    def _note(self, kind: str, stage: int, frame: int, start: float, end: float) -> None:
        if self._spans is not None:
            self._spans.append((kind, stage, frame, start, end))

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._told.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop has only weak references to tasks
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in(self, thread: ThreadPoolExecutor, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, function, *args)
