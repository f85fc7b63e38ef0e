"""Options of ONNX Runtime's execution providers as engines."""

from dataclasses import dataclass

from coexec.errors import UsageError
from coexec.precision import FLOAT32, Precision


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """Options of an engine."""

    precision: Precision = FLOAT32
    """The least precise arithmetic that the provider may use. CUDA then uses the matrix units for
    tf32; another provider has an option of its own for it."""
    options: str = ""
    """The provider's own options, as "device_type=GPU;num_streams=2"."""
    cuda_graph: bool = True
    """Whether CUDA records a module of fixed shapes as one graph."""
    library: str = ""
    """Path of a plug-in without a package; only for the engine ort-library."""

    def own(self, engine: str) -> dict[str, str]:
        """The provider's own options by name.

        Raises:
            UsageError: the text has another form.
        """
        pairs = [part.partition("=") for part in self.options.split(";") if part.strip()]
        if wrong := [name for name, equals, _ in pairs if not equals]:
            raise UsageError(
                f"{engine}.options={self.options!r}: {wrong[0]!r} has no value; write for example "
                f"{engine}.options='device_type=GPU;num_streams=2'"
            )
        return {name.strip(): value.strip() for name, _, value in pairs}
