"""What is launched: a kernel's text, its arguments, and the work items over which it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from coexec.arrays import Array
from coexec.engines.opencl.kernels.value import Value

__all__ = ["Argument", "ConvTraits", "Grid", "KernelLaunch"]

Grid = tuple[int, int, int]

Argument = Value | Array | int
"""Of a kernel: a tensor, which gets an offset beside it, a constant array, or a 32-bit integer."""


@dataclass(frozen=True, slots=True)
class ConvTraits:
    """What rules for work groups ask of a convolution."""

    kind: Literal["convolution", "depthwise"]
    edge: int
    """Of a square kernel; 0 if it is not square."""
    stride: int


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """One kernel with its arguments."""

    name: str
    source: str
    """OpenCL C, whole. Equal for launches that differ in their arguments only."""
    arguments: tuple["Argument", ...]
    written: frozenset[str]
    """Names of the tensors that it writes."""
    grid: Grid
    """Work items that are needed."""
    group: Grid | None
    """Fixed if the kernel depends on it; None: any will do, see `tuner`."""
    convolution: ConvTraits | None = None
    may_be_images: frozenset[str] = frozenset()
    """Tensors that it touches by whole vectors at coordinates only, so that images do as well."""
    with_images: Callable[[frozenset[str]], str] = field(default=lambda names: "")
    """The source for these tensors stored as images."""
