"""A loaded model: the ONNX operators and weights, and the graph of tasks made from them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import onnx_ir as ir

from coexec.errors import InputError, first_line
from coexec.graph.graph import Graph
from coexec.model.inputs import candidates
from coexec.model.nondeterministic import random_nodes

_Result = TypeVar("_Result")
_OVERRIDABLE = "coexec.overridable"
"""Key of a model's metadata."""


@dataclass(frozen=True, eq=False)
class Model:
    """A verified, simplified ONNX model with known shapes, and its graph of tasks.

    ``source`` does not change after loading; pieces and segments of it are extracted as new models.
    """

    source: ir.Model
    graph: Graph
    digest: str
    """Digest of the file or object it was loaded from, shapes included: the key of everything
    cached."""
    examples: Mapping[str, Any] | None = None
    """Inputs that suit it, by name, if the user has given some."""

    def candidates(self) -> Iterator[dict[str, Any]]:
        """Inputs to try one after the other, until some suit the model."""
        return candidates(self.graph, self.examples)

    def accepted(
        self, run: Callable[[Mapping[str, Any]], _Result]
    ) -> tuple[dict[str, Any], _Result]:
        """The first inputs with which ``run`` succeeds, and its result.

        Raises:
            InputError: it fails with the user's examples; or, if there are none, with all made-up
                inputs.
        """
        reason = ""
        for feeds in [self.examples] if self.examples else self.candidates():
            try:
                return dict(feeds), run(feeds)
            except Exception as error:  # ONNX Runtime's errors have no common class
                reason = first_line(error)
        whose = "these inputs" if self.examples else "made-up inputs"
        raise InputError(
            f"the model does not run with {whose}: {reason}; give it others with --inputs FILE.npz"
        )

    @cached_property
    def overridable(self) -> frozenset[str]:
        """Names of the weights that a feed could replace in ONNX Runtime. Here they are constant,
        with the value in the model: the input's default."""
        return frozenset(json.loads(self.source.metadata_props.get(_OVERRIDABLE, "[]")))

    @cached_property
    def random(self) -> tuple[str, ...]:
        """Names of the nodes that draw random numbers, themselves or in a body."""
        return random_nodes(self.source)

    @cached_property
    def values(self) -> Mapping[str, ir.Value]:
        """Every value of the model by name: inputs, constants and results."""
        values = {v.name: v for v in self.source.graph.inputs if v.name}
        values |= {name: v for name, v in self.source.graph.initializers.items() if name}
        values |= {v.name: v for node in self.source.graph for v in node.outputs if v.name}
        return values

    @cached_property
    def nodes(self) -> Mapping[str, ir.Node]:
        """The node that computes a value, by the value's name."""
        return {v.name: node for node in self.source.graph for v in node.outputs if v.name}


def forget_weights(model: ir.Model) -> None:
    """Drop the weights of a model that is not used any more. Its objects refer to each other, so
    that Python would free them much later."""
    for value in model.graph.initializers.values():
        value.const_value = None


def note_overridable(model: ir.Model, names: Iterable[str]) -> None:
    """Store the names for `Model.overridable` in ``model``; every saved form of it keeps them."""
    model.metadata_props[_OVERRIDABLE] = json.dumps(sorted(names))


def require_whole(weights: Iterable[ir.TensorProtocol | None]) -> None:
    """Raise ValueError if the file of a weight is too short for it; OSError if there is no file.

    Weights are mapped when first used: without this, a damaged file shows in the middle of a run.
    """
    for tensor in weights:
        if isinstance(tensor, ir.ExternalTensor):
            end = (tensor.offset or 0) + tensor.nbytes
            if Path(tensor.path).stat().st_size < end:
                raise ValueError(f"{tensor.path} is cut off: weight {tensor.name!r} ends at {end}")
