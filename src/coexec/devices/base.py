"""The narrow interface between coexec and whatever computes.

A device knows nothing of plans, regions or graphs: it compiles small ONNX models and runs them on
tensors in its own memory.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from coexec import hardware
from coexec.frontend.module import Array, LayoutOps, Module
from coexec.ir.graph import Task, Tensor

__all__ = ["Bound", "Device", "Program"]


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

    def why_not(self, task: Task) -> str | None:
        """None if the device can run ``task``, else the reason, as a user reads it."""
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

    def allocate(self, tensor: Tensor) -> Any:
        """An uninitialised device tensor; a numpy array where ``spec.memory`` is "host"."""
        ...

    def upload(self, array: Array) -> Any:
        """The device tensor that holds ``array``; the array itself in host memory."""
        ...

    def download(self, tensor: Any) -> Array:
        """The values of a device tensor, once computed."""
        ...

    def entered(self) -> AbstractContextManager[None]:
        """A thread runs this device's programs inside of it: bound to its cores, for example."""
        ...

    def close(self) -> None:
        """Give everything back. Programs of a closed device must not run."""
        ...
