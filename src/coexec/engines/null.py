"""An engine that computes nothing: to test plans and the executor without hardware."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coexec.arrays import Array, numpy_type
from coexec.engines.base import AfterFork, Engine, OpenEngine, Processor
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.module import Module

_COUNT = 16


class Pretended(Engine):
    """An engine for tests, with sixteen processors that do not exist, of a kind of their own."""

    needs_trial = False
    pretends = True

    def processors(self, kind: str) -> Sequence[Processor]:
        return [Processor(kind, "none", identity=str(number)) for number in range(_COUNT)]


class NullEngine(OpenEngine):
    """Accepts all tasks and leaves all tensors at zero. Durations come from a virtual clock."""

    after_fork: AfterFork = "works"

    def compile(self, module: Module) -> Any:
        return self

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "NullEngine":
        return self

    def run(self) -> None:
        pass

    def set_input(self, name: str, tensor: Any) -> None:
        pass

    def set_output(self, name: str, tensor: Any) -> None:
        pass

    def allocate(self, tensor: Tensor, leaving: bool = False) -> Array:
        return np.zeros(tensor.shape, numpy_type(tensor.dtype))


class Null(Pretended):
    """Devices "null:0" to "null:15"."""

    name = "null"
    kinds = ("null",)

    def open(
        self, device: Device, info: EngineInfo, options: Any, folder: Path | None
    ) -> OpenEngine:
        return NullEngine(device, info)
