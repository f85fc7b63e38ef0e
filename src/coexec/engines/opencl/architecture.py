"""What the kernel generators need to know of a processor. Pure: no handles, nothing is measured."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Architecture", "Family"]

Family = Literal["cpu", "nvidia", "mobile"]


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
