"""Options of the engine `cpp`."""

from dataclasses import dataclass
from typing import Literal

from coexec.engines.kernels.architecture import BlockWidth


@dataclass(frozen=True, slots=True)
class CppOptions:
    """Options of the engine."""

    precision: Literal["float32", "bf16"] = "float32"
    """"bf16" stores tensors and weights in 16 bits, and multiplies pairs of them by instructions
    for bfloat16 where the processor has these. Sums are float32."""
    block: BlockWidth = "auto"
    """Channels that are neighbours in memory: "4", "8", "16", or as many as a vector register of
    the processor holds ("auto")."""
    compiler: Literal["own", "any"] = "own"
    """Whose compiled kernels are used: those of this machine's compiler ("own"); or all in the
    cache that are for this processor's instruction sets, so that no compiler is needed unless one
    is missing ("any"), as in exports."""
