"""A launch: the text of a kernel, its arguments, and the work items over which it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from coexec.arrays import Array
from coexec.engines.kernels.value import Value

__all__ = ["Argument", "ConvTraits", "Grid", "KernelLaunch"]

Grid = tuple[int, int, int]

Argument = Value | Array | int
"""Argument of a kernel: a tensor and its offset, a constant array, or a 32-bit integer."""


@dataclass(frozen=True, slots=True)
class ConvTraits:
    """Properties of a convolution for the rules of work groups."""

    kind: Literal["convolution", "depthwise"]
    edge: int
    """Edge of a square kernel; 0 if it is not square."""
    stride: int


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """One kernel with its arguments."""

    name: str
    source: str
    """Complete OpenCL C text. Launches that differ in their arguments only have the same text."""
    arguments: tuple["Argument", ...]
    written: frozenset[str]
    """Names of the tensors that the kernel writes."""
    grid: Grid
    """Work items that are needed."""
    group: Grid | None
    """Work group that the kernel needs; None: any group is right, see `tuner`."""
    convolution: ConvTraits | None = None
    may_be_images: frozenset[str] = frozenset()
    """Tensors that the kernel uses by whole vectors at coordinates only, so they may be images."""
    with_images: Callable[[frozenset[str]], str] = field(default=lambda names: "")
    """The source for these tensors stored as images."""
