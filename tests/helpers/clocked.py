"""A device that computes nothing and reports a time for each task."""

from collections.abc import Sequence

from coexec.engines.base import Program
from coexec.engines.null import NullEngine
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.module import Module
from coexec.timing.trace import Detail

BYTE_S = 1e-7


class Clocked(NullEngine):
    """An engine that computes nothing and reports a time for each task, in proportion to the bytes
    of its output."""

    def __init__(self, version: str = "") -> None:
        info = EngineInfo("null", version)
        super().__init__(Device("null:0", "null", info), info)
        self.compiled: list[str] = []
        self._ran: list[Detail] = []

    def compile(self, module: Module) -> Program:
        self.compiled += [tensor.name for tensor in module.outputs]
        return _Telling(self, module)

    def ran(self, tensor: Tensor) -> None:
        end_s = tensor.size_bytes * BYTE_S
        self._ran.append(Detail("kernel", "null:0", "kernel", 0.0, 0.0, 0.0, end_s, tensor.name))

    def start_timing(self) -> None:
        self._ran.clear()

    def stop_timing(self) -> Sequence[Detail]:
        return tuple(self._ran)


class _Telling(NullEngine):
    def __init__(self, engine: Clocked, module: Module) -> None:
        self._engine, self._module = engine, module

    def run(self) -> None:
        self._engine.ran(self._module.outputs[0])
