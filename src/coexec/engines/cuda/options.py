"""Options of the CUDA engine."""

from dataclasses import dataclass
from typing import Literal

Compiler = Literal["auto", "nvrtc", "opencl"]
Branches = Literal["auto", "all", "none"]


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """Options of the engine."""

    branches: Branches = "auto"
    """Whether launches that do not depend on each other may run side by side ("all"), or one after
    the other ("none"); "auto" measures both once and takes the faster."""
    precision: Literal["float32", "tf32", "fp16"] = "float32"
    """The precision in which matrix units (tensor cores) multiply, in convolutions and products of
    matrices: no matrix units ("float32"), 10 bits of fraction ("tf32"), or 16-bit floats, in which
    tensors and weights of more than 4,096 scalars are then stored, too ("fp16"). All sums are
    32-bit floats."""
    compiler: Compiler = "auto"
    """The compiler of the kernels: NVIDIA's library for compilation at run time ("nvrtc"), the one
    in NVIDIA's OpenCL driver ("opencl"), or the first of them that is there ("auto")."""
    waiting: Literal["active", "passive"] = "active"
    """A thread that waits for the GPU polls ("active") or sleeps ("passive")."""
