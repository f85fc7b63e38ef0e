"""Names of the inputs with other float values than ordinary ones. Without imports of NumPy, because
the help of the command line needs the names alone."""

from typing import Literal

ProbeName = Literal["zeros", "large", "negative", "small", "unit"]
"""A name of `coexec.model.inputs.probes`."""
