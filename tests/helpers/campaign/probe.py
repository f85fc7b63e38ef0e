"""One operator with its inputs, and models of several independent operators."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Given:
    """An input: a constant of the model, or one array for each set of feeds."""

    sets: tuple[Array, ...]
    constant: bool = False

    def __post_init__(self) -> None:
        """Convert scalars, which NumPy returns for a shape without axes, to arrays."""
        object.__setattr__(self, "sets", tuple(np.asarray(values) for values in self.sets))

    @property
    def first(self) -> Array:
        return self.sets[0]


@dataclass(frozen=True)
class Probe:
    """One node and the values of its inputs. None is an omitted input."""

    op_type: str
    inputs: tuple[Given | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    index: int = -1
    """Its number in the campaign."""

    @property
    def operators(self) -> tuple[str]:
        return (self.op_type,)

    @property
    def names(self) -> list[str]:
        """Names of the inputs in a model; "" for omitted inputs."""
        return [f"p{self.index}_x{i}" if x else "" for i, x in enumerate(self.inputs)]

    @property
    def results(self) -> list[str]:
        """Names of the outputs in a model."""
        return [f"p{self.index}_y{i}" for i in range(self.outputs)]

    @property
    def fed(self) -> dict[str, Given]:
        """The inputs that are fed with a request, by name."""
        named = zip(self.names, self.inputs, strict=True)
        return {name: x for name, x in named if x is not None and not x.constant}

    @property
    def sets(self) -> int:
        """The number of sets of feeds."""
        return max((len(x.sets) for x in self.fed.values()), default=1)

    def feeds(self, number: int) -> dict[str, Array]:
        return {name: x.sets[number % len(x.sets)] for name, x in self.fed.items()}

    def __str__(self) -> str:
        """Operator, types, shapes and attributes: enough to build the case by hand."""
        inputs = ", ".join("none" if x is None else _shown(x) for x in self.inputs)
        attributes = ", ".join(f"{k}={v!r}" for k, v in self.attributes.items())
        return f"{self.op_type}[{self.opset}]({inputs}){{{attributes}}} -> {self.outputs}"


def _shown(x: Given) -> str:
    text = f"{x.first.dtype}{list(x.first.shape)}"
    if x.constant and x.first.size <= 8:
        return f"const {text}={x.first.ravel().tolist()}"
    return f"const {text}" if x.constant else text


def model_of(probes: Sequence[Probe]) -> bytes:
    """A model of ``probes`` that do not depend on each other; all have the same opset."""
    nodes, inputs, outputs, weights = [], [], [], []
    for probe in probes:
        name = f"p{probe.index}_node"
        nodes.append(
            helper.make_node(
                probe.op_type, probe.names, probe.results, name=name, **probe.attributes
            )
        )
        outputs += [onnx.ValueInfoProto(name=result) for result in probe.results]
        for key, x in zip(probe.names, probe.inputs, strict=True):
            if x is None:
                continue
            if x.constant:
                weights.append(numpy_helper.from_array(x.first, key))
            else:
                kind = helper.np_dtype_to_tensor_dtype(x.first.dtype)
                inputs.append(helper.make_tensor_value_info(key, kind, x.first.shape))
    graph = helper.make_graph(nodes, "campaign", inputs, outputs, weights)
    imports = [helper.make_opsetid("", probes[0].opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
