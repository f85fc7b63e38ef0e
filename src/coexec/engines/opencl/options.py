"""Options of the OpenCL engine."""

from dataclasses import dataclass
from typing import Literal

from coexec.engines.kernels.architecture import BlockWidth


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
    memory: Literal["auto", "own"] = "auto"
    """"auto": on CPU cores kernels compute on the host's arrays, if those are 32-bit. "own":
    tensors are copied to memory that belongs to the device."""
    block: BlockWidth = "auto"
    """Channels that are neighbours in memory, on CPU cores: "4", "8", "16", or as many as a vector
    register of the processor holds ("auto")."""
    runtime: str = ""
    """Part of the name of the runtime to use on CPU cores. Empty: the first one that works."""
