"""CPU cores with generated kernels that the machine's C++ compiler has compiled."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from coexec.engines import detect
from coexec.engines.base import AfterFork, OpenEngine
from coexec.engines.cpp.compiler import compiler
from coexec.engines.cpp.libraries import Libraries
from coexec.engines.cpp.options import CppOptions
from coexec.engines.cpp.program import CppProgram
from coexec.engines.kernels.architecture import Architecture, blocks_on_cores
from coexec.engines.kernels.border import blocks_dialect
from coexec.engines.kernels.building import build
from coexec.engines.kernels.operators import why_not
from coexec.errors import DeviceError, first_line
from coexec.graph.graph import Operator, Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.dialect import Dialect
from coexec.lowering.module import Module


class CppCores(OpenEngine):
    """CPU cores that compute on the host's arrays."""

    after_fork: AfterFork = "works"
    alignment = 8  # bytes of the widest scalar: kernels access vectors at any address

    def __init__(
        self,
        device: Device,
        info: EngineInfo,
        options: CppOptions,
        folder: Path | None,
        arch: Architecture | None = None,
    ) -> None:
        """``arch``: generate kernels for this architecture in place of the processor's own
        (tests)."""
        super().__init__(device, info)
        self.arch = arch or architecture(len(device.cores), options)
        self.libraries = Libraries(device.name, compiler(), folder)

    def why_not_operator(self, op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
        return why_not(op, tensors, self.arch)

    def compile(self, module: Module) -> CppProgram:
        try:
            built = build(module, self.arch, on_arrays=True)
        except (ValueError, KeyError) as error:
            names = ", ".join(t.name for t in module.outputs)
            raise DeviceError(
                f"{self.device.name} cannot compile what makes {names}: {first_line(error)}; run "
                f"that part elsewhere with another plan"
            ) from error
        functions = self.libraries.functions(built.launches, built.tasks)
        ends = {tensor.name for tensor in (*module.inputs, *module.outputs)}
        return CppProgram(self.device.name, built, functions, ends)

    @cached_property
    def dialect(self) -> Dialect:
        return blocks_dialect(self.arch)


def architecture(cores: int, options: CppOptions) -> Architecture:
    """So many cores of this processor as a target for kernels."""
    features = detect.features()
    wide = 8 if "AVX2" in features else 4
    block, registers = blocks_on_cores(16 if "AVX512F" in features else wide, options.block)
    return Architecture(
        "cpu", block, compute_units=max(1, cores), registers=registers, allocates=True
    )
