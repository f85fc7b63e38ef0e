"""Options of the OpenCL engine."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the engine."""

    precision: Literal["float32", "fp16"] = "float32"
    """"fp16" stores tensors and weights in 16 bits and computes in 32."""
    waiting: Literal["passive", "active"] = "passive"
    """A thread that waits for kernels sleeps ("passive") or polls ("active")."""
    tuning: Literal["fast", "none", "exhaustive"] = "fast"
    """Choice of work groups: by the driver ("none"), by rule ("fast"), or by measurements whose
    results are stored ("exhaustive")."""
    storage: Literal["auto", "buffer", "image"] = "auto"
    """Memory of the tensors inside of a program: "buffer", "image", or the better one for the
    processor ("auto")."""
