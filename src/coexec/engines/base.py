"""The contract between coexec and the libraries that compute.

An `Engine` drives processors. Opened on one device, it is an `OpenEngine`: it compiles small ONNX
models and runs them on tensors in its own memory. It does not deal with plans, regions or graphs.
An engine is found through an entry point of the group "coexec.engines" that names its class:

    [project.entry-points."coexec.engines"]
    mine = "my_package:MyEngine"

An entry point of the group "coexec_engine_families" names a function that returns several engines
by name: those that exist depend on what is installed.

The docstrings of the classes list what an engine must do and what it may do:

    Engine      must: name, processors, open         may: options, describe, preload, ...
    OpenEngine  must: why_not, compile               may: lower, a memory of its own, launch ahead,
                                                          a session of a whole model, ...
    Program     must: bind
    Bound       must: run, set_input, set_output     may: launch, calls of C functions (`Native`,
                                                          `NativeLaunch`), tiles (`BoundInTiles`)

Two of them have defaults: `processors` are the CPU cores, and `why_not` refuses nothing.
`docs/guides/engine.md` has an engine that does what it must.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from coexec.arrays import Array, aligned_bytes, numpy_type
from coexec.engines import detect
from coexec.engines.tiles import TiledLaunch
from coexec.graph.graph import Graph, Operator, Task, Tensor
from coexec.graph.region import Region
from coexec.hardware.hardware import Device, EngineInfo, Memory, Place
from coexec.lowering.dialect import STANDARD, Dialect
from coexec.lowering.layout import PLAIN, Layout
from coexec.lowering.module import Module
from coexec.model.main_memory import main_memory_bytes
from coexec.precision import FLOAT32, Precision
from coexec.timing.trace import Detail

AfterFork = Literal["works", "again", "lost"]
"""State of an engine's programs in a forked child process, which has only one of the threads.

"works": they run there; "again": they have to be compiled again; "lost": the engine cannot be used.
"""


ONLY = "only"
"""Identity of a processor by an engine that does not report which it is: of its kind the only one.
"""


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor of this machine, as an engine sees it."""

    kind: str
    """Part of a device's name before the colon: "cpu", "gpu" or "npu"."""
    title: str
    """The processor's own name, shown to users."""
    identity: str = ""
    """Distinguishes it from other processors of its kind. All engines report the same value, for
    example a GPU's UUID; `ONLY` by an engine that does not know it."""
    driver: str = ""
    """The driver or library that drives it, with its version."""
    unusable: str | None = None
    """Why it must not be used, and the remedy. None: it was tried and works."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further facts, shown to users: "memory", "units", ..."""
    notes: tuple[str, ...] = ()
    """Remarks for users, for example about a second driver that does not work."""
    precisions: Sequence[Precision] = (FLOAT32,)
    """Precisions in which it computes there and that may gain time: names in `coexec.precision`.
    One that is not float32 is a value of the engine's option "precision"."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of an engine that has none."""


class OpaqueValue:
    """Holder in which a program stores an opaque output.

    An opaque value has no memory before it is computed, so none can be allocated for it.
    """

    value: Any = None
    """The output as ONNX Runtime returns it: an array, a list, a dict or None."""


class Bound(Protocol):
    """A program with the tensors that it reads and writes.

    Must: all of these methods. If its engine has `OpenEngine.launches_ahead`, also ``launch()``:
    that queues the program on the device, behind all earlier work of the device, and returns an
    `InFlight` or raises ExecutionError. If its engine has `OpenEngine.awaits_words`, this is
    ``launch(written, words, end_word)``:

    * ``words``: addresses of words. The program begins when all of them are 1.
    * ``written``: names of inputs that the host has then written in their `OpenEngine.host_array`.
    * ``end_word``: address of a word, or None. The device sets it to 1 when the outputs are
      complete, and those that leave are in their `OpenEngine.host_array`.

    A word has 32 bits and lies in such an array.
    """

    def run(self) -> None:
        """Compute the outputs.

        Returns when the outputs are complete. May return earlier if they are certain to be complete
        before the next work that the same engine gets on this device.

        Raises:
            ExecutionError: the engine failed. Any other exception counts as raised by the caller,
                for example by its signal handler.
        """
        ...

    def set_input(self, name: str, tensor: Any) -> None:
        """Read another tensor from the next run on."""
        ...

    def set_output(self, name: str, tensor: Any) -> None:
        """Write another tensor from the next run on."""
        ...


class InFlight(Protocol):
    """Work that was launched on a device and may not have ended.

    It keeps the tensors alive that the work reads and writes. Any thread may call its methods.
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
        """Start and end of the work on the device, in seconds of `time.perf_counter`.

        Available for work that has ended and that was launched between `OpenEngine.start_timing`
        and `stop_timing`.
        """
        ...


class NativeCall(NamedTuple):
    """A call of a C function, which returns 0 if it has worked. It must not raise, and needs no
    lock of Python."""

    function: int
    """Its address."""
    arguments: tuple[int, ...]
    """Integers and pointers, at most fourteen. They stay valid as long as the object that has the
    call."""
    returns_pointer: bool = False
    """It returns a pointer to an error, or null. False: an ``int``."""


@runtime_checkable
class Native(Protocol):
    """A bound program that C functions carry out, too."""

    @property
    def native(self) -> Sequence[NativeCall]:
        """The calls that do what `Bound.run` does, or ``launch``, in order. They stay the
        same when other tensors are bound. Empty: it has to be called in Python."""
        ...

    def failure(self, result: int) -> Exception:
        """The ExecutionError for what a call has returned. To be called once for each error."""
        ...


@runtime_checkable
class NativeLaunch(Native, Protocol):
    """A program whose launches C functions wait for, too."""

    @property
    def native_wait(self) -> Sequence[NativeCall]:
        """The calls that return when the outputs of the latest launch are complete."""
        ...


@runtime_checkable
class BoundInTiles(Protocol):
    """A bound program that threads compute together, one on each core of the device, in place of
    `Bound.run`."""

    @property
    def launches(self) -> Sequence[TiledLaunch]:
        """They stay the same when other tensors are bound."""
        ...

    @property
    def pointers(self) -> Array:
        """The pointers of the launches' slots, of 64 bits. Binding a tensor changes them here."""
        ...


@runtime_checkable
class NativeEntrance(Protocol):
    """A program that becomes a `NativeLaunch` when it is known what the host writes."""

    def enter(self, written: Collection[str]) -> None:
        """Make the native calls, if C functions can launch it. The host has written these inputs in
        their `OpenEngine.host_array` before each launch."""
        ...


class Program(Protocol):
    """A compiled model. Must: `bind`."""

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        """The program bound to these tensors. It may be run any number of times."""
        ...


class OwnSession(Protocol):
    """A whole model in the engine's own session. May be used by several threads."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in memory that belongs to the caller.

        Raises:
            ExecutionError: the engine failed.
        """
        ...


class OpenEngine(ABC):
    """An engine that is open on one device. All methods may raise DeviceError.

    It must

    * `compile` a module to a `Program`
    * give the reason for each task that it cannot run: `why_not`, or `why_not_operator` if it
      decides operator by operator. By default it runs all tasks that are not opaque.

    It may, where the default does not suit it

    * `lower` a whole model to its own operators and layouts once, which its `dialect` describes
    * keep tensors in a memory of its own: `allocate`, `upload`, `fill`, `download`. The default
      methods suit engines that compute on arrays in the host's main memory; `alignment` is of those
    * compute while the launching thread continues: `launches_ahead`, with `rests`,
      programs that `launch`, and a clock of its own: `start_timing`, `stop_timing`
    * meet the host at words in memory, without calls: `awaits_words`, with `host_array`
    * run a whole model in a session of its own: `has_own_session`, `own_session`
    * record more details in another engine on the same device: `timed`
    * run opaque tasks (`runs_opaque`), and programs in a forked process (`after_fork`)
    * release resources: `close`
    """

    has_own_session: bool = False
    """Whether `own_session` returns a session."""
    after_fork: AfterFork = "again"
    alignment: int = 1
    """Bytes. In main memory, an output has to begin at a multiple of this number."""
    launches_ahead: bool = False
    """Whether its bound programs have a method ``launch``, for any thread. The device computes them
    one after the other, outside of the launching thread. Such an engine has a clock of its own,
    because only the device can report when it computed."""
    awaits_words: bool = False
    """Whether its programs, which it launches ahead, can wait for words in the host's memory and
    set them: see `Bound`."""
    thread_context: AbstractContextManager[object] | None = None
    """What a thread enters in which C functions launch its programs; None: nothing."""
    decisions: Sequence[str] = ()
    """Sentences for the report: what it has measured and chosen while it compiled."""
    runs_opaque: bool = False
    """Whether it runs opaque tasks. Its programs then get opaque inputs as the caller feeds them,
    and a `OpaqueValue` for each opaque output."""

    uncompiled: Mapping[str, str] = MappingProxyType({})
    """By signature of a task that could not be compiled, the error. A plan of this process leaves
    the task to another engine."""

    def __init__(self, device: Device, info: EngineInfo) -> None:
        """
        Args:
            device: the processor; ``info`` describes its engine.
        """
        self.device = device
        self.info = info
        self.thread_cores: Collection[int] = device.cores
        """The cores that a thread is bound to while it runs programs here; empty: any."""

    @property
    def place(self) -> Place:
        """The identity of the device, as plans name it."""
        return Place(self.device.name, self.info.label)

    @cached_property
    def memory(self) -> Memory:
        """The memory of its tensors. Engines with the same memory read each other's tensors."""
        return Memory(self.device.host, self.info.memory)

    def refusal(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        """The reason why it cannot run ``task``; None if it can.

        Opaque tasks are refused unless `runs_opaque` is set. `why_not` decides about all others.
        """
        if task.opaque and not self.runs_opaque:
            return f"{self.info.name} runs no opaque tasks: {task.opaque}"
        if task.signature in self.uncompiled:
            return self.uncompiled[task.signature]
        return self.why_not(task, tensors)

    def refused(self, graph: Graph) -> dict[str, str]:
        """By name of a task that it cannot run, the reason."""
        reasons = ((task.name, self.refusal(task, graph.tensors)) for task in graph.tasks)
        return {name: reason for name, reason in reasons if reason is not None}

    def why_not(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        """The reason why the engine cannot run ``task``, in words for users; None if it can.

        ``tensors`` are the graph's tensors by name: kernels support certain shapes and types."""
        reasons = (self.why_not_operator(op, tensors) for op in task.operators)
        return next((reason for reason in reasons if reason is not None), None)

    def why_not_operator(self, op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
        """As `why_not`, for one operator. For engines that decide operator by operator."""
        return None

    def lower(self, model: Any, borders: Sequence[str], folder: Path) -> Path | None:
        """Rewrite a whole model into the engine's own operators and layouts, once.

        Segments are then cut out of the result, so that tensors pass from one to the next in the
        engine's layout. No operators are fused across a value in ``borders``. For each of these
        values, the result has an output "border:NAME". Operators that only change the layout
        (`dialect`) compute this output from the value of the result that carries its elements.

        Returns:
            The lowered model's file in ``folder``, with its weights in a file beside it; None if
            the engine runs models as they are.
        """
        return None

    @property
    def dialect(self) -> Dialect:
        """The operators that `lower` writes in addition to the standard ones."""
        return STANDARD

    @abstractmethod
    def compile(self, module: Module) -> Program:
        """Make ``module`` ready to run. May be called from any thread."""

    def rests(self, end_s: float) -> bool:
        """Wait until all work of the device has ended, at most until ``end_s`` of `time.monotonic`.

        Returns whether all work has ended. Only engines with `launches_ahead` have to wait."""
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

        ``leaving``: the tensor will be downloaded after each run that writes it. A program copies
        such outputs to memory that the host can read before its run returns. So a later `download`
        by another thread does not wait for work that the device got meanwhile.
        """
        return aligned_empty(tensor)

    def upload(self, array: Array, into: Any = None) -> Any:
        """The tensor that holds ``array``; in main memory, the array itself.

        In another memory it is ``into``, if given: a tensor of equal shape and dtype."""
        return array

    def fill(
        self, into: Any, boxes: Sequence[tuple[Array, Region]], layout: Layout = PLAIN
    ) -> None:
        """Write arrays into boxes of a tensor of this engine. The boxes cover the whole tensor.

        Args:
            layout: of the tensor. The arrays have this layout already, as `Layout.view` returns
                it. Boxes end where blocks end.
        """
        target = into
        if not isinstance(into, np.ndarray):
            stop = tuple(max(ends) for ends in zip(*(r.stop for _, r in boxes), strict=True))
            target = np.empty(stop, boxes[0][0].dtype)
        for array, region in boxes:
            layout.view(target, region)[...] = array
        if target is not into:
            self.upload(target, into)

    def download(self, tensor: Any) -> Array:
        """The elements of a computed tensor; valid until the next download of the same tensor."""
        return np.asarray(tensor)

    def host_array(self, tensor: Any) -> Array:
        """The array in the host's memory through which a tensor enters or leaves the device. It is
        the same memory as long as the tensor lives. Only for engines that have `awaits_words`, or
        programs with a `NativeEntrance`."""
        raise NotImplementedError

    def timed(self) -> "OpenEngine":
        """An engine on the same device that records more details and may be slower, if there is
        one; by default this one. It compiles programs of its own. It must not be used after this
        engine is closed."""
        return self

    def start_timing(self) -> None:  # noqa: B027 - most engines have no clock
        """Record kernels, copies and waiting of all later work, if the engine has a clock."""

    def stop_timing(self) -> Sequence[Detail]:
        """The recorded times, in seconds of `time.perf_counter`. Called when nothing runs."""
        return ()

    def close(self) -> None:  # noqa: B027 - most engines have nothing to give back
        """Release all resources. Programs of a closed engine must not run."""


class Engine(ABC):
    """A library that computes: ONNX Runtime, OpenVINO, OpenCL. A process has one object of each.

    It must

    * have the `name` of its entry point, or that under which a family lists it
    * report `processors` that were tried, if it drives others than the CPU cores (`kinds`)
    * `open` a device: an `OpenEngine`
    * import no large modules before `processors` or `open` is called

    It may, where the default does not suit it

    * have `options` and, by `describe`, facts about a device with these options
    * name what its results and durations depend on: `distributions`, `version`, `installed`
    * be the one that a device gets without a name of an engine: `rank`
    * be tried in another process before it is used (`needs_trial`), or load its library before
      all others are loaded (`preload`)
    """

    name: str
    """Name of its entry point. Users write it behind a device: "cpu:0/NAME"."""
    kinds: ClassVar[Collection[str]] = ("cpu",)
    """Kinds of the processors that it may drive."""
    rank: ClassVar[int] = 100
    """A device that is named without an engine gets the engine of lowest rank."""
    options: ClassVar[type] = NoOptions
    """A frozen dataclass of the engine's options, each with a default."""
    distributions: ClassVar[Collection[str]] = ()
    """Packages on whose versions its results depend."""
    needs_trial: bool = True
    """Whether coexec tries the engine in a separate process before it is used, as `configured` for
    its options. False if the engine does so itself, or if nothing works without the engine."""
    builds_kernels: ClassVar[bool] = False
    """Whether it compiles source code for a model, which may take a minute. Where time is limited,
    plans with such an engine start after all others."""
    export_options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Options with which it starts from an export, in addition to the user's."""
    replaces: ClassVar[Collection[str]] = ()
    """Engines that run the same kernels more slowly: where both drive a processor, planner "auto"
    does not try them."""
    advice: ClassVar[str] = "leave the engine away"
    """What users may do who name it for a processor of another kind."""
    pretends: ClassVar[bool] = False
    """Whether it is only for tests: it is not listed, and never chosen automatically."""

    @cached_property
    def version(self) -> str:
        """Text of everything that results and durations depend on, except processor and driver."""
        return self.installed

    @property
    def installed(self) -> str:
        """The installed packages of the engine with their versions, found without loading it."""
        return ", ".join(f"{name} {_version(name)}" for name in self.distributions)

    def preload(self) -> None:  # noqa: B027 - few engines care
        """Called once, before any engine's library is loaded in this process.

        For a library that has to be loaded in a certain way, if another engine would load it in
        another way."""

    def configured(self, options: Any) -> "Engine":
        """The engine that lists the processors with these options: by default this one, because
        few have options that decide what they drive."""
        return self

    def processors(self, kind: str) -> Sequence[Processor]:
        """The processors of this machine that it drives, of one of its kinds."""
        return [Processor(kind, detect.processor_name())]

    def describe(self, device: Device, options: Any) -> EngineInfo:
        """Facts about this engine on a device.

        Args:
            device: the processor alone; its engine is not filled in yet.
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
            device: ``info``, the result of `describe`, is its engine.
            options: an object of `options`.
            folder: the cache folder for compiled programs and measurements; None: nothing is kept.

        Raises:
            DeviceError: it cannot be used.
        """


def aligned_empty(tensor: Tensor) -> Array:
    """Uninitialised memory for ``tensor`` that starts at a cache line."""
    flat = aligned_bytes(tensor.size_bytes)
    return flat.view(numpy_type(tensor.dtype)).reshape(tensor.shape)


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of unknown version"
