"""Load a model: read, fix shapes, simplify, check, group into tasks."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from coexec.frontend.group import build_graph
from coexec.frontend.model import Model
from coexec.frontend.read import ModelSource, digest_of, read
from coexec.frontend.simplify import fix_shapes, simplify

__all__ = ["load"]


def load(
    source: ModelSource, *, shapes: Mapping[str, Sequence[int]] | None = None, name: str = ""
) -> Model:
    """Load, simplify and group a model.

    Args:
        source: path, serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        shapes: fixed shapes of inputs that the model leaves dynamic.
        name: how the graph is called; by default the model's own name.

    Raises:
        ModelError: unreadable, unknown operators, or shapes that are not known.
        UsageError: ``shapes`` does not fit the model.
    """
    shapes = shapes or {}
    digest = digest_of(source, shapes)
    model = read(source)
    fix_shapes(model, shapes)
    simplify(model)
    return Model(model, build_graph(model, name or model.graph.name or "model"), digest)
