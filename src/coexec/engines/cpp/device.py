"""CPU cores with generated kernels that the machine's C++ compiler has compiled."""

from collections.abc import Collection, Mapping
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
from coexec.engines.kernels.building import build, offsets_of
from coexec.engines.kernels.operators import why_not
from coexec.errors import DeviceError, first_line
from coexec.graph.graph import Operator, Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.dialect import Dialect
from coexec.lowering.module import Module
from coexec.units import format_bytes


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
        self.thread_cores = device.cores[:1]  # the other threads of a team have one core each
        self.arch = arch or architecture(len(device.cores), options)
        self.libraries = Libraries(
            device.name, compiler() if options.compiler == "own" else None, folder
        )

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
        try:
            return CppProgram(built, functions, ends, max(1, len(self.device.cores)))
        except MemoryError:
            needed = format_bytes(offsets_of(built.scratch)[1])
            raise DeviceError(
                f"{self.device.name} needs {needed} of memory between kernels and its copies of "
                f"the weights, and there is not as much; use another engine"
            ) from None

    @cached_property
    def dialect(self) -> Dialect:
        return blocks_dialect(self.arch)


_VECTORS = {"AVX512F": (16, 32), "AVX2": (8, 16), "ASIMD": (4, 32)}
"""Floats in a vector register and number of registers, by instruction set; ASIMD is NEON with 64
bits."""
_SSE = 4, 16


def architecture(
    cores: int, options: CppOptions, features: Collection[str] | None = None
) -> Architecture:
    """So many cores of a processor as a target for kernels.

    Args:
        features: instruction sets, as `detect.features` returns them; None: this processor's.
    """
    sets = detect.features() if features is None else features
    vector, registers = next((_VECTORS[name] for name in _VECTORS if name in sets), _SSE)
    block, registers = blocks_on_cores(vector, registers, options.block)
    half = options.precision == "bf16"
    return Architecture("cpu", block, max(1, cores), registers, half=half)
