"""Options of the engine `cpp`."""

from dataclasses import dataclass

from coexec.engines.kernels.architecture import BlockWidth


@dataclass(frozen=True, slots=True)
class CppOptions:
    """Options of the engine."""

    block: BlockWidth = "auto"
    """Channels that are neighbours in memory: "4", "8", "16", or as many as a vector register of
    the processor holds ("auto")."""
