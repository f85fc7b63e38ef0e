"""The narrow interface between coexec and whatever computes.

A device knows nothing of plans, regions or graphs: it compiles small ONNX models and runs them on
tensors in its own memory.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from coexec.frontend.module import Array, LayoutOps, Module
from coexec.ir.graph import Task, Tensor
from coexec.system import hardware
from coexec.timing.trace import Detail

__all__ = ["AfterFork", "Bound", "Device", "Options", "Program", "Timed"]


@dataclass(frozen=True, slots=True)
class Options:
    """How devices are opened, where the kind of device leaves a choice."""

    precision: str = "fp32"
    """"fp16" stores tensors and weights in 16 bits and computes in 32."""
    waiting: str = "passive"
    """A thread that waits sleeps ("passive"), or looks again and again ("active")."""
    tuning: str = "fast"
    """Of work groups: "none", "fast" (by rule) or "exhaustive" (measured and remembered)."""
    storage: str = "auto"
    """Of tensors inside of a program: "buffer", "image", or what suits the processor ("auto")."""
    binaries: Path | None = None
    """Folder of the cache, for compiled kernels and measured choices; None: nothing is kept."""


AfterFork = Literal["works", "again", "lost"]
"""What a device's programs are worth in a forked child, which has none of the other threads: they
work; they have to be compiled again; or the device cannot be used there."""


class Bound(Protocol):
    """A program with the device tensors that it reads and writes."""

    def run(self) -> None:
        """Compute. Returns when the outputs are complete, or are certain to be before anything
        that the same device is given next."""
        ...

    def set_input(self, name: str, tensor: Any) -> None:
        """Read another tensor from the next run on."""
        ...

    def set_output(self, name: str, tensor: Any) -> None:
        """Write another tensor from the next run on."""
        ...


class Program(Protocol):
    """A compiled model."""

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        """The program with these device tensors, to be run any number of times."""
        ...


class Device(Protocol):
    """A processor that compiles and runs ONNX models. All methods may raise DeviceError."""

    spec: hardware.Device
    layout_ops: LayoutOps
    thread_cores: Collection[int]
    """The cores that a thread is bound to while it runs this device's programs; empty: any."""
    after_fork: AfterFork

    def why_not(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        """None if the device can run ``task``, else the reason, as a user reads it.

        ``tensors`` are the graph's, by name: what a kernel can do depends on shapes and types."""
        ...

    def lower(self, model: Any, borders: Sequence[str], folder: Path) -> Path | None:
        """Rewrite a whole model into the engine's own operators and layouts, once.

        Segments are then cut out of the result, so that tensors pass from one to the next in the
        engine's layout. Values named in ``borders`` stay apart: for each, the result has an output
        "border:NAME" that is computed by `layout_ops` from the value that carries it.

        Returns:
            The lowered model's file in ``folder``, weights external beside it; None if the engine
            runs models as they are.
        """
        ...

    def compile(self, module: Module) -> Program:
        """Make ``module`` ready to run. May be called from any thread."""
        ...

    def allocate(self, tensor: Tensor, leaving: bool = False) -> Any:
        """An uninitialised device tensor; a numpy array where ``spec.memory`` is "host".

        ``leaving``: after each run that writes it, it will be downloaded. A program brings such
        outputs to where the host can read them before its run returns, so that a later `download`
        by another thread need not wait behind what the device was given meanwhile.
        """
        ...

    def upload(self, array: Array, into: Any = None) -> Any:
        """The device tensor that holds ``array``; the array itself in host memory.

        Elsewhere it is ``into`` if that is given, a tensor of equal shape and dtype."""
        ...

    def download(self, tensor: Any) -> Array:
        """The values of a device tensor, once computed; valid until the next download of it."""
        ...

    def close(self) -> None:
        """Give everything back. Programs of a closed device must not run."""
        ...


@runtime_checkable
class Timed(Protocol):
    """A device with a clock of its own, which can tell kernels, copies and waiting apart."""

    def start_timing(self) -> None:
        """Keep the times of all that follows."""
        ...

    def stop_timing(self) -> Sequence[Detail]:
        """What was kept, in seconds of `time.perf_counter`. To be called when nothing runs."""
        ...
