"""The narrow interface between coexec and whatever computes.

An `Engine` drives processors. Opened on one device, it is an `OpenEngine`: it compiles small ONNX
models and runs them on tensors in its own memory, and knows nothing of plans, regions or graphs.
An engine is found through an entry point of the group "coexec.engines" that names its class:

    [project.entry-points."coexec.engines"]
    mine = "my_package:MyEngine"
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from coexec.arrays import Array, numpy_type
from coexec.costs.base import Workload
from coexec.costs.workloads import plain_workload
from coexec.engines import detect
from coexec.frontend.dialect import PLAIN, STANDARD, Dialect, Layout, as_it_lies, where_it_lies
from coexec.frontend.memory import main_memory_bytes
from coexec.frontend.module import Module
from coexec.ir.graph import Operator, Task, Tensor
from coexec.ir.region import Region
from coexec.system.hardware import Device, EngineInfo, Memory, Place
from coexec.timing.trace import Detail

__all__ = ["AfterFork", "Bound", "BoxCopy", "Engine", "Held", "InFlight", "Launchable",
           "NoOptions", "OpenEngine", "OwnSession", "Processor", "Program", "Timed",
           "aligned_empty"]  # fmt: skip

AfterFork = Literal["works", "again", "lost"]
"""What an engine's programs are worth in a forked child, which has none of the other threads: they
work; they have to be compiled again; or the engine cannot be used there."""

_ALIGNMENT = 64
"""Bytes: a cache line and an AVX-512 register. Unaligned tensors cost a few per cent."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor of this machine, as an engine sees it."""

    kind: str
    """"cpu", "gpu", "npu": what stands before the colon of a device's name."""
    title: str
    """Its own name, for people."""
    identity: str = ""
    """Tells it from others of its kind, and is the same from all engines: a GPU's UUID."""
    driver: str = ""
    """What drives it, with its version."""
    unusable: str | None = None
    """Why it must not be used, and the remedy. None: it was tried and works."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """More about it, for people: "memory", "units", ..."""
    notes: tuple[str, ...] = ()
    """What else is to be said to people, such as a driver beside this one that does not work."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Of an engine that leaves no choice."""


class Held:
    """What a program leaves an opaque output in, which has no memory before it is computed."""

    value: Any = None
    """As ONNX Runtime returns it: an array, a list, a dict or None."""


class BoxCopy(NamedTuple):
    """A copy between boxes of two arrays in the host's memory."""

    target: Array
    into: Array
    """A view of ``target``."""
    source: Array
    part: Array
    """A view of ``source``, of the shape of ``into``."""


class Bound(Protocol):
    """A program with the tensors that it reads and writes."""

    def run(self) -> None:
        """Compute. Returns when the outputs are complete, or are certain to be before anything
        that the same engine is given next on this device.

        Raises:
            ExecutionError: the engine failed. Anything else that is raised counts as the caller's.
        """
        ...

    def set_input(self, name: str, tensor: Any) -> None:
        """Read another tensor from the next run on."""
        ...

    def set_output(self, name: str, tensor: Any) -> None:
        """Write another tensor from the next run on."""
        ...


class InFlight(Protocol):
    """What a device was given to compute and may not have ended.

    It keeps alive what is read and written. May be asked by any thread.
    """

    @property
    def ended(self) -> bool:
        """Whether the outputs are complete, or the device has failed. Does not wait."""
        ...

    def wait(self) -> None:
        """Return when the outputs are complete. May be called again.

        Raises:
            ExecutionError: the device failed.
        """
        ...

    def span_s(self) -> tuple[float, float]:
        """When the device began and ended, in seconds of `time.perf_counter`.

        Only of what has ended, and was launched between `Timed.start_timing` and `stop_timing`.
        """
        ...


class Launchable(Bound, Protocol):
    """A bound program that a device computes by itself, while the launching thread goes on."""

    def launch(self) -> InFlight:
        """Give it to the device, behind everything that the device was given before.

        Raises:
            ExecutionError: the device did not take it.
        """
        ...


class Program(Protocol):
    """A compiled model."""

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        """The program with these tensors, to be run any number of times."""
        ...


class OwnSession(Protocol):
    """A whole model as the engine itself would run it. May be used by several threads."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in memory that belongs to the caller.

        Raises:
            ExecutionError: the engine failed.
        """
        ...


class OpenEngine(ABC):
    """An engine on one device. All methods may raise DeviceError.

    What is written here is right for engines that compute on arrays in the host's main memory.
    """

    has_own_session: bool = False
    """Whether `own_session` is more than nothing."""
    after_fork: AfterFork = "again"
    alignment: int = 1
    """Bytes: what it computes has to begin at multiples of it in main memory."""
    launches_ahead: bool = False
    """Whether its bound programs are `Launchable`, by any thread, as they are computed elsewhere
    than in the thread that launches them, one after the other. Such an engine is `Timed`, too:
    only the device knows when it computed."""
    runs_opaque: bool = False
    """Whether it runs opaque tasks. Its programs are then given opaque inputs as the caller feeds
    them, and a `Held` for each opaque output."""

    def __init__(self, device: Device, info: EngineInfo) -> None:
        """
        Args:
            device: the processor, of which ``info`` is one engine.
        """
        self.device = device
        self.info = info
        self.thread_cores: Collection[int] = device.cores
        """The cores that a thread is bound to while it runs programs here; empty: any."""

    @property
    def place(self) -> Place:
        """The device and this engine, as plans name them."""
        return Place(self.device.name, self.info.name)

    @cached_property
    def memory(self) -> Memory:
        """Where its tensors lie. Engines with the same memory read each other's tensors."""
        return Memory(self.device.host, self.info.memory)

    def refusal(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        """None if it runs ``task``, else the reason: `why_not`, of which opaque tasks are no part
        unless it says that it runs these."""
        if task.opaque and not self.runs_opaque:
            return f"{self.info.name} runs no opaque tasks: {task.opaque}"
        return self.why_not(task, tensors)

    def why_not(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        """None if the engine can run ``task``, else the reason, as a user reads it.

        ``tensors`` are the graph's, by name: what a kernel can do depends on shapes and types."""
        reasons = (self.why_not_operator(op, tensors) for op in task.operators)
        return next((reason for reason in reasons if reason is not None), None)

    def why_not_operator(self, op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
        """The same of one operator, for engines that refuse by operators."""
        return None

    def workload(
        self, operators: Sequence[Operator], tensors: Mapping[str, Tensor], compiled: str
    ) -> Workload:
        """What its kernels do for a task or a part of one, in units whose seconds can be learnt.

        Args:
            operators: in order; the task computes the output of the last one.
            tensors: by name, of the task's own size.
            compiled: the types of what the engine makes of them, with spaces between (as of
                `Module.operators`); "" if that is not known.
        """
        return plain_workload(operators, tensors)

    def lower(self, model: Any, borders: Sequence[str], folder: Path) -> Path | None:
        """Rewrite a whole model into the engine's own operators and layouts, once.

        Segments are then cut out of the result, so that tensors pass from one to the next in the
        engine's layout. Values named in ``borders`` stay apart: for each, the result has an output
        "border:NAME" that is computed by operators that only change the layout (`dialect`) from
        the value that carries it.

        Returns:
            The lowered model's file in ``folder``, weights external beside it; None if the engine
            runs models as they are.
        """
        return None

    @property
    def dialect(self) -> Dialect:
        """What `lower` writes beside standard operators."""
        return STANDARD

    @abstractmethod
    def compile(self, module: Module) -> Program:
        """Make ``module`` ready to run. May be called from any thread."""

    def rests(self, end_s: float) -> bool:
        """Wait until all that the device was given has ended, at most until ``end_s`` of
        `time.monotonic`; whether it has. Only engines that `launches_ahead` have to wait."""
        return True

    def own_session(self, model: Any) -> "OwnSession | None":
        """The engine's own session of a whole model, with all of its optimisations.

        Args:
            model: as a user gives it: a path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.

        Returns:
            None if the engine has nothing better than `compile`.

        Raises:
            ModelError: the engine does not take the model.
        """
        return None

    def allocate(self, tensor: Tensor, leaving: bool = False) -> Any:
        """An uninitialised tensor; a numpy array in main memory.

        ``leaving``: after each run that writes it, it will be downloaded. A program brings such
        outputs to where the host can read them before its run returns, so that a later `download`
        by another thread need not wait behind what the device was given meanwhile.
        """
        return aligned_empty(tensor)

    def upload(self, array: Array, into: Any = None) -> Any:
        """The tensor that holds ``array``; the array itself in main memory.

        Elsewhere it is ``into`` if that is given, a tensor of equal shape and dtype."""
        return array

    def fill(
        self, into: Any, boxes: Sequence[tuple[Array, Region]], layout: Layout = PLAIN
    ) -> None:
        """Write arrays into boxes of a tensor of this engine, which together are all of it.

        Args:
            layout: of the tensor and, once laid out so, of the arrays (`coexec.frontend.dialect`);
                boxes end where blocks end.
        """
        target = into
        if not isinstance(into, np.ndarray):
            stop = tuple(max(ends) for ends in zip(*(r.stop for _, r in boxes), strict=True))
            target = np.empty(stop, boxes[0][0].dtype)
        lying = as_it_lies(target, layout)
        for array, region in boxes:
            lying[where_it_lies(region, layout).slices] = array
        if target is not into:
            self.upload(target, into)

    def copier(self, copies: Sequence[BoxCopy]) -> Callable[[], None] | None:
        """What gives the device these copies, behind what it was given before and in front of what
        it is given later; None if it leaves them to the calling thread.

        Only for engines that compute in main memory and `launches_ahead`.
        """
        return None

    def download(self, tensor: Any) -> Array:
        """The values of a tensor, once computed; valid until the next download of it."""
        return np.asarray(tensor)

    def timed(self) -> "OpenEngine":
        """An engine on the same device that is `Timed`, if there is one; by default this one.

        For runs of which more is to be told, as it may compute more slowly. It compiles programs
        of its own, and lives no longer than this one.
        """
        return self

    def close(self) -> None:  # noqa: B027 - most engines have nothing to give back
        """Give everything back. Programs of a closed engine must not run."""


class Engine(ABC):
    """What computes: ONNX Runtime, OpenCL, OpenVINO. One object of it serves the process.

    It must not import what is large before it is asked for processors or to open one.
    """

    name: ClassVar[str]
    """As users write it behind a device, "cpu:0/NAME"; that of its entry point."""
    kinds: ClassVar[Collection[str]] = ("cpu",)
    """Of the processors that it may drive."""
    rank: ClassVar[int] = 100
    """A device that is named without an engine has the one of lowest rank."""
    options: ClassVar[type] = NoOptions
    """A frozen dataclass of the choices that it leaves, each with a default."""
    distributions: ClassVar[Collection[str]] = ()
    """Packages whose versions its results depend on."""
    needs_trial: ClassVar[bool] = True
    """Whether coexec tries it in a process of its own before it is used. Not where the engine does
    so itself, or where nothing works without it."""
    pretends: ClassVar[bool] = False
    """It is for tests: not listed, and never chosen by itself."""

    @cached_property
    def version(self) -> str:
        """All that results and durations depend on besides processor and driver."""
        return self.installed

    @property
    def installed(self) -> str:
        """What is installed for it, told without loading a library."""
        return ", ".join(f"{name} {_version(name)}" for name in self.distributions)

    def preload(self) -> None:  # noqa: B027 - few engines care
        """Called once, before any engine's library is loaded in this process: for what has to be
        loaded in a certain way, and would be loaded in another by another engine."""

    def processors(self, kind: str) -> Sequence[Processor]:
        """What it drives here, of one of its kinds."""
        return [Processor(kind, detect.processor_name())]

    def describe(self, device: Device, options: Any) -> EngineInfo:
        """What is known of this engine on a device.

        Args:
            device: described by its processor alone; it has no engines yet.
            options: an object of `options`.

        Raises:
            DeviceError: it cannot drive this device.
        """
        return EngineInfo(self.name, self.version, memory_bytes=main_memory_bytes())

    @abstractmethod
    def open(
        self, device: Device, info: EngineInfo, options: Any, folder: Path | None
    ) -> OpenEngine:
        """Start the engine on a device.

        Args:
            device: with ``info``, which `describe` made of it, among its engines.
            options: an object of `options`.
            folder: of the cache, for what the engine compiles and measures; None: nothing is kept.

        Raises:
            DeviceError: it cannot be used.
        """


@runtime_checkable
class Timed(Protocol):
    """An engine with a clock of its own, which can tell kernels, copies and waiting apart."""

    def start_timing(self) -> None:
        """Keep the times of all that follows."""
        ...

    def stop_timing(self) -> Sequence[Detail]:
        """What was kept, in seconds of `time.perf_counter`. To be called when nothing runs."""
        ...


def aligned_empty(tensor: Tensor) -> Array:
    """Uninitialised memory for ``tensor`` that starts at a cache line."""
    raw = np.empty(tensor.size_bytes + _ALIGNMENT, np.uint8)
    offset = -raw.__array_interface__["data"][0] % _ALIGNMENT  # quicker than raw.ctypes
    flat = raw[offset : offset + tensor.size_bytes]
    return flat.view(numpy_type(tensor.dtype)).reshape(tensor.shape)


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of unknown version"
