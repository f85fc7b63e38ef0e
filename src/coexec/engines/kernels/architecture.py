"""The description of a processor that kernel generators use."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["cpu", "nvidia", "mobile"]
MatrixUnit = Literal["", "tf32", "fp16"]
"""The precision in which matrix units multiply; they add in float32. "": no matrix units."""
BlockWidth = Literal["auto", "4", "8", "16"]
"""Channels in a block on CPU cores; "auto": as many as a vector register holds."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A processor as a target for kernels."""

    family: Family
    """Selects the kernel variants. "cpu": wide vectors, one thread per core. "nvidia": warps and
    fast local memory. "mobile": neither (phones, integrated GPUs)."""
    block: int
    """Channels of a blocked tensor that are neighbours in memory: the width of a vector."""
    compute_units: int = 1
    registers: int = 16
    """Vector registers of ``block`` floats that a work item can keep ("cpu" only)."""
    max_group: int = 256
    """Largest number of work items in a work group."""
    local_bytes: int = 32768
    """Bytes of local memory that the work items of a group share."""
    half: bool = False
    """Tensors and weights are stored as 16-bit floats: bfloat16 on CPU cores, else float16. Sums
    stay in 32 bits."""
    unit: MatrixUnit = ""
    """The matrix units that products of matrices and convolutions may use."""
    image_edge: int = 0
    """Largest width and height of an image, in texels; 0: all tensors are stored in buffers."""
    model: str = ""
    """Name of the processor, as its driver reports it, for rules that hold for some models only."""

    @property
    def vector(self) -> str:
        """The OpenCL type of ``block`` channels."""
        return "float" if self.block == 1 else f"float{self.block}"

    @property
    def half_type(self) -> str:
        """The type of 16-bit floats, as numpy or ml_dtypes names it."""
        return "bfloat16" if self.family == "cpu" else "float16"

    def in_vectors(self, row: int) -> bool:
        """Whether a kernel may access rows of ``row`` scalars by aligned vectors. On CPU cores the
        host's arrays may begin anywhere."""
        return self.family != "cpu" and row % self.block == 0


def blocks_on_cores(vector: int, registers: int, width: BlockWidth = "auto") -> tuple[int, int]:
    """The ``block`` and ``registers`` of CPU cores with so many vector registers of ``vector``
    floats.

    A block that is wider than a register uses several registers.
    """
    native = max(4, vector)
    block = native if width == "auto" else int(width)
    return block, registers // max(1, block // native)
