"""What a device compiles: a small ONNX model whose weights lie beside it, not in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coexec.arrays import Array
from coexec.ir.graph import Tensor
from coexec.ir.region import Region

__all__ = ["Gather", "GatheredBox", "Module"]


@dataclass(frozen=True, eq=False)
class Module:
    """A serialized ONNX ModelProto whose large initializers are external, and their values.

    The external locations in ``proto`` mean nothing; engines take the values from ``weights``,
    which are never copied (they may be mapped from a file).
    """

    proto: bytes
    weights: Mapping[str, Array]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[str, ...] = ()
    """Types of its operators, as the engine runs them."""
    results: tuple[str, ...] = ()
    """By operator, the part of a tensor that it computes or helps to compute."""
    layouts: Mapping[str, int] = field(default_factory=dict)
    """Of those inputs and outputs that are not in the model's layout, by name: a layout of
    `coexec.frontend.dialect`."""
    stored: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By weight, its name in the cache that it is mapped from, and where it begins there, in bytes.
    """


class GatheredBox(NamedTuple):
    """A box of a value, and where it goes. Channels count with those that fill the last block."""

    value: str
    taken: Region
    put: Region


@dataclass(frozen=True)
class Gather:
    """An input of a module that is put together from boxes of other values of the same layout."""

    layout: int
    """Of `coexec.frontend.dialect`."""
    boxes: tuple[GatheredBox, ...]
