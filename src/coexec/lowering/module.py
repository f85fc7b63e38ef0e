"""The unit that a device compiles: a small ONNX model whose weights are beside it, not in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coexec.arrays import Array
from coexec.graph.graph import Tensor
from coexec.graph.region import Region
from coexec.lowering.layout import Layout


@dataclass(frozen=True, eq=False)
class Module:
    """A serialized ONNX ModelProto whose large initializers are external, and their values.

    The external locations in ``proto`` have no meaning; engines take the values from ``weights``,
    which are never copied (they may be mapped from a file).
    """

    proto: bytes
    weights: Mapping[str, Array]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[str, ...] = ()
    """Types of its operators, as the engine runs them."""
    results: tuple[str, ...] = ()
    """For each operator, the part of a tensor that it computes or helps to compute."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Layouts of the inputs and outputs that are not in the model's layout, by name."""
    stored: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """For each weight that is mapped from the cache: its name there, and the byte where it
    begins."""


class GatheredBox(NamedTuple):
    """A box of a value, and its target. The channels that fill the last block are included."""

    value: str
    taken: Region
    put: Region


@dataclass(frozen=True)
class Gather:
    """An input of a module that is assembled from boxes of other values of the same layout."""

    layout: Layout
    boxes: tuple[GatheredBox, ...]
