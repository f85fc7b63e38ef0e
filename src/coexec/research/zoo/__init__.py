"""Well-known architectures with deterministic random weights, for tests, examples and benchmarks.

    from coexec.research.zoo import MODELS, build
    model = build("squeezenet")        # onnx_ir.Model, batch 1, float32

To add a model: one file in `networks`, with the network's name; `network_file` describes its form.
"""

from importlib.resources import files

import onnx_ir as ir

from coexec.errors import ModelError
from coexec.research.zoo.network_file import NetworkFile

__all__ = ["MODELS", "build"]

_FOLDER = files("coexec.research.zoo")

MODELS = tuple(sorted(f.name.removesuffix(".txt") for f in (_FOLDER / "networks").iterdir()))
"""Names of the models, sorted."""


def build(name: str, **settings: int) -> ir.Model:
    """The model of that name: input "x", batch 1, float32, the same weights in every process.

    Building is instant: weights are made when they are first read, and then kept. ``settings``
    replace numbers that the network's file names, such as ``size``.

    Raises:
        ModelError: there is no such model; the message lists the models.
    """
    if name not in MODELS:
        raise ModelError(f"the zoo has no model {name!r}; it has {', '.join(MODELS)}")
    shared, own = _FOLDER / "blocks.txt", _FOLDER / "networks" / f"{name}.txt"
    return NetworkFile(name, shared.read_text(), own.read_text()).build(**settings)
