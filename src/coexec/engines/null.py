"""A device that computes nothing: to test plans and the executor without hardware."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coexec.engines.base import AfterFork
from coexec.frontend.module import Array, LayoutOps, Module
from coexec.ir.graph import Task, Tensor
from coexec.system import hardware

__all__ = ["NullDevice"]


class NullDevice:
    """Accepts everything and leaves all tensors at zero. Durations come from a virtual clock."""

    layout_ops: LayoutOps = frozenset()
    thread_cores: Collection[int] = ()
    after_fork: AfterFork = "works"

    def __init__(self, spec: hardware.Device) -> None:
        self.spec = spec

    def why_not(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        return None

    def lower(self, model: Any, borders: Sequence[str], folder: Path) -> Path | None:
        return None

    def compile(self, module: Module) -> "NullDevice":
        return self

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "NullDevice":
        return self

    def run(self) -> None:
        pass

    def set_input(self, name: str, tensor: Any) -> None:
        pass

    def set_output(self, name: str, tensor: Any) -> None:
        pass

    def allocate(self, tensor: Tensor, leaving: bool = False) -> Array:
        return np.zeros(tensor.shape, tensor.dtype)

    def upload(self, array: Array, into: Array | None = None) -> Array:
        return array

    def download(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def close(self) -> None:
        pass
