"""Run a compiled plan on real devices: a thread for each, driven by `schedule.Progress`."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Literal

import numpy as np

from coexec.compiled import CompiledPlan
from coexec.devices.base import Bound, Device, Program, Timed
from coexec.errors import CoexecError, DeviceError, ExecutionError
from coexec.frontend.module import Array
from coexec.ir.graph import Tensor
from coexec.memory.reuse import Lifetime, share
from coexec.record import NoRecorder, Recorder
from coexec.schedule import Progress, Segment, ended_before

__all__ = ["Executor", "Waiting"]

_SMALL_BYTES = 2**15
"""Of outputs: below, a copy is quicker than new memory in each run."""

Waiting = Literal["passive", "active"]

_Queue = SimpleQueue["tuple[_Run, int | str | None] | None"]
"""Of one device: segments to run, and values to bring over, each with its run; or just a run that
begins, for those who wait actively. None ends a thread, or the caller's part in a run."""


class Executor:
    """A compiled plan with its programs, buffers and threads.

    `run` may be called from several threads; the requests take turns. Close it, or use it in a
    ``with`` statement: each device keeps a thread until then.
    """

    def __init__(
        self,
        compiled: CompiledPlan,
        devices: Sequence[Device],
        *,
        waiting: Waiting = "passive",
        tensor_caching: bool = True,
    ) -> None:
        """Compile the modules and start a thread for each device that has something to do.

        Args:
            waiting: what a thread does that waits for another device during a run. "passive": it
                sleeps. "active": it keeps its core busy, which gets it going sooner. Between runs
                all threads sleep.
            tensor_caching: without it, a tensor is moved anew for each segment that reads it
                elsewhere, and not before: to measure what caching and prefetching bring.

        Raises:
            DeviceError: a device of the plan is missing, or cannot compile its part.
        """
        self._compiled = compiled
        self._devices = {d.spec.name: d for d in devices}
        for segment in compiled.segments:
            if segment.device not in self._devices:
                raise DeviceError(
                    f"the plan uses {segment.device!r}, which is not open; open devices: "
                    f"{', '.join(self._devices)}"
                )
        self._programs: list[Program | None] = [
            self._devices[s.device].compile(m) if m.outputs else None
            for s, m in zip(compiled.segments, compiled.modules, strict=True)
        ]
        self._home = {t.name: s.device for s, m in self._parts() for t in m.outputs}
        whole = {t.name for t in compiled.outputs} - compiled.parts.keys()
        # Large outputs are written where the caller gets them. For small ones, making and binding
        # new memory in each run takes longer than a copy.
        self._returned = [
            t
            for segment, module in self._parts()
            for t in module.outputs
            if t.name in whole
            and t.size_bytes >= _SMALL_BYTES
            and self._devices[segment.device].spec.memory == "host"
        ]
        self._caching = tensor_caching
        self._wanted_elsewhere = self._crossing() if tensor_caching else {}
        self._static = self._allocate()
        self._landed: dict[tuple[str, str], Any] = {}
        """By value and memory: the device tensor that it moves into in each run."""
        self._bindings: dict[int, Bound] = {}
        self._changing: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._timed = [d for d in devices if isinstance(d, Timed)]
        self._progress = Progress(compiled.segments)
        self._turn = threading.Lock()
        used = list(dict.fromkeys(s.device for s in compiled.segments))
        # The caller's own thread serves the device that ends last, which saves two hand-overs.
        self._callers = compiled.segments[-1].device if used else None
        self._queues: dict[str, _Queue] = {name: SimpleQueue() for name in used}
        self._active = waiting == "active"
        self._closed = False
        self._threads: list[tuple[threading.Thread, _Queue]] = []
        for name in used:
            if name != self._callers:
                thread = threading.Thread(
                    target=self._serve, args=(name,), name=f"coexec {name}", daemon=True
                )
                self._threads.append((thread, self._queues[name]))
                thread.start()

    def run(
        self, feeds: Mapping[str, Array], recorder: "Recorder | None" = None
    ) -> dict[str, Array]:
        """One inference.

        Args:
            feeds: a C-contiguous array of the right shape and dtype for every model input.
            recorder: notes what ran when; by default nobody does.

        Returns:
            The model's outputs by name, in memory of the caller's own.

        Raises:
            ExecutionError: a device failed; the message names the tasks.
        """
        with self._turn:
            if self._closed:
                raise ExecutionError("the session is closed; make a new one")
            run = _Run(self._progress.again(), feeds, recorder or NoRecorder())
            for tensor in self._returned:
                run.tensors[tensor.name] = self._device_of(tensor.name).allocate(tensor)
            timed = self._timed if run.recorder.wants_details() else []
            for device in timed:
                device.start_timing()
            try:
                if self._callers is not None:
                    self._work(run, self._callers)
                if run.error is not None:
                    raise run.error
                return {t.name: self._output(t, run) for t in self._compiled.outputs}
            finally:
                for device in timed:
                    run.recorder.add(device.stop_timing())

    def close(self) -> None:
        """End the threads. The devices stay open."""
        with self._turn:
            self._closed = True
            for thread, queue in self._threads:
                queue.put(None)
                thread.join()
            self._threads = []

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self) -> Any:
        return zip(self._compiled.segments, self._compiled.modules, strict=True)

    def _crossing(self) -> dict[int, list[tuple[str, str]]]:
        """By segment, what of it moves into another memory, and who reads it there first."""
        maker = {t.name: s.index for s, m in self._parts() for t in m.outputs}
        found: dict[tuple[str, str], str] = {}
        for segment, module in self._parts():
            memory = self._devices[segment.device].spec.memory
            for name in (t.name for t in module.inputs):
                if name in maker and self._device_of(name).spec.memory != memory:
                    found.setdefault((name, memory), segment.device)
        wanted: dict[int, list[tuple[str, str]]] = {}
        for (value, _), device in found.items():
            wanted.setdefault(maker[value], []).append((value, device))
        return wanted

    def _device_of(self, value: str) -> Device:
        return self._devices[self._home[value]]

    def _allocate(self) -> dict[str, Any]:
        """Device tensors for all values that segments hand on; those never alive together share."""
        returned = {t.name for t in self._returned}
        kept = {value for parts in self._compiled.parts.values() for value, _ in parts}
        kept.update(t.name for t in self._compiled.outputs)
        made = {t.name: (s.index, t) for s, m in self._parts() for t in m.outputs}
        end = [len(self._compiled.segments)]  # the caller: nothing has ended before it
        readers = {name: list(end) if name in kept else [] for name in made}
        for segment, module in self._parts():
            for tensor in module.inputs:
                if tensor.name in readers:
                    readers[tensor.name].append(segment.index)
        groups: dict[str, list[str]] = {}
        for name in made:
            if name not in returned:
                groups.setdefault(self._device_of(name).spec.memory, []).append(name)
        leaving = kept | {n for wanted in self._wanted_elsewhere.values() for n, _ in wanted}
        ended = ended_before(self._compiled.segments)
        static: dict[str, Any] = {}
        for memory, names in groups.items():
            if memory != "host":  # such devices lay their tensors out themselves
                static |= {n: self._device_of(n).allocate(made[n][1], n in leaving) for n in names}
                continue
            lives = [Lifetime(made[n][1].size_bytes, made[n][0], tuple(readers[n])) for n in names]
            buffer_of, sizes = share(lives, ended)
            allocate = self._device_of(names[0]).allocate
            buffers = [allocate(Tensor("", (size,), "uint8")) for size in sizes]
            for name, buffer in zip(names, buffer_of, strict=True):
                tensor = made[name][1]
                flat = buffers[buffer][: tensor.size_bytes]
                static[name] = flat.view(tensor.dtype).reshape(tensor.shape)
        return static

    def _bound(self, segment: Segment, run: "_Run") -> Bound | None:
        """The segment with its tensors; those that change with each run are set anew."""
        program, module = self._programs[segment.index], self._compiled.modules[segment.index]
        if program is None:
            return None
        device = self._devices[segment.device]
        bound = self._bindings.get(segment.index)
        if bound is None:
            inputs = {t.name: self._input(t.name, device, run) for t in module.inputs}
            outputs = {t.name: self._tensor(t.name, run) for t in module.outputs}
            bound = program.bind(inputs, outputs)
            self._changing[segment.index] = (
                tuple(n for n in inputs if not self._stays(n, device)),
                tuple(n for n in outputs if n not in self._static),
            )
            self._bindings[segment.index] = bound
        else:
            changing_inputs, changing_outputs = self._changing[segment.index]
            for name in changing_inputs:
                bound.set_input(name, self._input(name, device, run))
            for name in changing_outputs:
                bound.set_output(name, run.tensors[name])
        return bound

    def _tensor(self, value: str, run: "_Run") -> Any:
        return self._static[value] if value in self._static else run.tensors[value]

    def _stays(self, value: str, device: Device) -> bool:
        """Whether ``device`` finds a value in the same tensor in every run."""
        return value in self._static and self._device_of(value).spec.memory == device.spec.memory

    def _input(self, value: str, device: Device, run: "_Run") -> Any:
        """A value in the memory of ``device``; moved there once, kept for later readers."""
        memory = device.spec.memory
        if value not in self._home:
            return run.moved(value, memory, lambda: self._land(value, device, run.feeds[value]))
        source = self._device_of(value)
        tensor = self._tensor(value, run)
        if source.spec.memory == memory:
            return tensor
        if not self._caching:
            return self._land(value, device, source.download(tensor))
        return run.moved(value, memory, lambda: self._land(value, device, source.download(tensor)))

    def _land(self, value: str, device: Device, array: Array) -> Any:
        key = (value, device.spec.memory)
        self._landed[key] = device.upload(array, self._landed.get(key))
        return self._landed[key]

    def _output(self, tensor: Tensor, run: "_Run") -> Array:
        if tensor.name in self._compiled.parts:
            whole = np.empty(tensor.shape, tensor.dtype)
            for value, region in self._compiled.parts[tensor.name]:
                whole[region.slices] = self._device_of(value).download(self._static[value])
            return whole
        if tensor.name in self._static:
            static = self._device_of(tensor.name).download(self._static[tensor.name])
            return static.copy()
        if tensor.name in self._home:
            return self._device_of(tensor.name).download(run.tensors[tensor.name])
        if tensor.name in run.feeds:
            return run.feeds[tensor.name].copy()
        return self._compiled.constants[tensor.name].copy()

    def _work(self, run: "_Run", name: str) -> None:
        """Start a run and serve one device of it, in the caller's thread, until all have ended."""
        queue = self._queues[name]
        run.when_done = lambda: queue.put(None)
        with self._devices[name].entered():
            for node in run.start():
                self._queues[self._compiled.segments[node].device].put((run, node))
            for _, other in self._threads if self._active else ():
                other.put((run, None))
            while True:
                try:
                    job = _next(queue, run if self._active else None)
                    if job is None:
                        return
                    self._advance(*job, name)
                except KeyboardInterrupt as interrupt:  # let the others come to a rest first
                    run.fail(interrupt)

    def _serve(self, name: str) -> None:
        """The thread of one device."""
        queue, run = self._queues[name], None
        with self._devices[name].entered():
            while (job := _next(queue, run)) is not None:
                run = job[0] if self._active else None
                self._advance(*job, name)

    def _advance(self, run: "_Run", job: int | str | None, name: str) -> None:
        if isinstance(job, str):
            self._prefetch(run, job, name)
            return
        following: int | None = job
        while following is not None:
            following = self._step(run, following, name)

    def _prefetch(self, run: "_Run", value: str, name: str) -> None:
        """Bring a value over while the device has nothing else to do: who reads it waits less.

        It comes before its reader in the queue, so the run cannot have ended by now.
        """
        try:
            if run.error is None:
                self._input(value, self._devices[name], run)
        except Exception as error:
            run.fail(ExecutionError(f"{name} failed while it fetched {value!r}: {error}; the run "
                                    f"was stopped, no result is returned"))  # fmt: skip

    def _step(self, run: "_Run", node: int, name: str) -> int | None:
        """Run one segment and wake whoever waited for it; the next one of this device, if ready."""
        segment = self._compiled.segments[node]
        try:
            if run.error is None:
                run.recorder.begin(node)
                bound = self._bound(segment, run)
                if bound is not None:
                    bound.run()
                run.recorder.end(node)
        except KeyboardInterrupt as interrupt:
            run.fail(interrupt)
        except Exception as error:
            run.fail(_explain(error, segment))
        for value, device in self._wanted_elsewhere.get(node, ()):
            self._queues[device].put((run, value))
        following = None
        for freed in run.finish(node):
            device = self._compiled.segments[freed].device
            if device == name:
                following = freed
            else:
                self._queues[device].put((run, freed))
        return following


class _Run:
    """One inference under way."""

    def __init__(self, progress: Progress, feeds: Mapping[str, Array], recorder: Recorder) -> None:
        self.feeds = feeds
        self.recorder = recorder
        self.tensors: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.when_done: Callable[[], None] = _nothing
        self._progress = progress
        self._under_way = 0
        self.over = False
        self._lock = threading.Lock()
        self._moved: dict[tuple[str, str], Any] = {}

    def start(self) -> list[int]:
        ready = self._progress.ready()
        self._under_way = len(ready)
        return ready

    def finish(self, node: int) -> list[int]:
        """Note that ``node`` has ended; what may start now. Nothing more after a failure.

        The run is done when nobody works on it any more: the buffers serve the next one.
        """
        with self._lock:
            freed = self._progress.finish(node) if self.error is None else []
            self._under_way += len(freed) - 1
            if self._under_way == 0:
                self.over = True
                self.when_done()
            return freed

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error

    def moved(self, value: str, memory: str, move: Callable[[], Any]) -> Any:
        # Only the thread of a device moves tensors into its memory, unless devices share one.
        if (value, memory) not in self._moved:
            self._moved[value, memory] = move()
        return self._moved[value, memory]


def _next(queue: _Queue, run: "_Run | None") -> "tuple[_Run, int | str | None] | None":
    """The next job; as long as ``run`` goes on, by asking for it again and again."""
    while run is not None and not run.over:
        try:
            return queue.get_nowait()
        except Empty:
            time.sleep(0)  # the others need the interpreter
    return queue.get()


def _nothing() -> None:
    pass


def _explain(error: Exception, segment: Segment) -> Exception:
    tasks = ", ".join(piece.task for piece in segment.pieces[:3])
    more = len(segment.pieces) - 3
    where = tasks + (f" and {more} more" if more > 0 else "")
    wrapped = ExecutionError(f"{segment.device} failed in segment {segment.index} ({where}): "
                             f"{error}; the run was stopped, no result is returned")  # fmt: skip
    wrapped.__cause__ = error if not isinstance(error, CoexecError) else error.__cause__
    return wrapped
