"""What the kernel generators need to know of a processor. Pure: no handles, nothing is measured."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Architecture", "BlockWidth", "Family", "blocks_on_cores"]

Family = Literal["cpu", "nvidia", "mobile"]
BlockWidth = Literal["auto", "4", "8", "16"]
"""Channels of a block on CPU cores; "auto": what a vector register holds."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A processor as a target for kernels."""

    family: Family
    """Which variants fit: wide vectors and one thread a core, warps with fast local memory, or
    neither (phones, integrated GPUs)."""
    block: int
    """Channels that lie side by side in a blocked tensor: the width of a vector."""
    compute_units: int = 1
    registers: int = 16
    """Vector registers of ``block`` floats that a work item can keep ("cpu" only)."""
    max_group: int = 256
    """Work items in a group."""
    local_bytes: int = 32768
    """Memory that the work items of a group share."""
    half: bool = False
    """Tensors and weights are stored as 16-bit floats; arithmetic stays in 32 bits."""
    image_edge: int = 0
    """The largest width and height of an image; 0: tensors lie in buffers."""
    model: str = ""
    """The processor's own name, for rules that are known for some models only."""

    @property
    def vector(self) -> str:
        """The OpenCL type of ``block`` channels."""
        return "float" if self.block == 1 else f"float{self.block}"


def blocks_on_cores(vector: int, width: BlockWidth = "auto") -> tuple[int, int]:
    """The ``block`` and ``registers`` of CPU cores with vector registers of ``vector`` floats.

    A block that is wider than a register takes several.
    """
    native = max(4, vector)
    block = native if width == "auto" else int(width)
    registers = 32 if native in (4, 16) else 16  # AVX-512 and NEON have 32, AVX has 16
    return block, registers // max(1, block // native)
