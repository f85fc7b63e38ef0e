"""The facts of an operator that follow from shapes, and the common rule of cutting: axes of the
output that are axes of the inputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coexec.graph.graph import Operator, Scalars, Tensor
from coexec.graph.region import Region

Tensors = Mapping[str, Tensor]
"""The tensors of the graph by name."""

AxisMaps = Sequence[Mapping[int, int]]
"""Per input of an operator: the input axis that each output axis runs along, where there is one."""


@dataclass(frozen=True, slots=True)
class OperatorRegion:
    """One operator cut down to a region of its output: the data for writing it as a node."""

    output: Region
    """The requested region."""
    computes: Region
    """The region that the node computes from ``inputs``: ``output``, or a larger region, which is
    cropped."""
    inputs: tuple[Region | None, ...]
    """By input position, weights included; None where absent, of size 0 where nothing is read."""
    attributes: Mapping[str, Scalars | None] = field(default_factory=dict)
    """Attributes that differ from the operator's own; None where one is dropped."""
    constants: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """New values of int64 inputs that depend on shapes, by input position."""

    @property
    def pads(self) -> tuple[int, ...] | None:
        """For a window: the padding left at true borders, begins then ends; else None."""
        pads = self.attributes.get("pads")
        return tuple(int(p) for p in pads) if isinstance(pads, tuple) else None


def _no_products(op: Operator, tensors: Tensors) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class OperatorRule:
    """How operators of one type are cut, and how many products they compute.

    ``cut`` is called only with regions that are neither whole nor empty, and that are cut along
    ``axes``; only the first output of an operator is read.
    """

    axes: Callable[[Operator, Tensors], tuple[int, ...]]
    """The output axes along which any cut is exact."""
    cut: Callable[[Operator, Tensors, Region], OperatorRegion]
    aligned: int = 0
    """Number of first inputs that are cut along an axis only if the output is cut along the same
    axis. A task can fuse this operator behind another one only through such an input."""
    macs: Callable[[Operator, Tensors], int] = _no_products
    """Multiply-accumulates, by the convention of the field: those of products of tensors only."""
    along: str = ""
    """In words for users, the axes that can be cut; "" if an operator is always computed whole."""
    why_whole: str = ""
    """Why it is always computed whole, in words for users."""


def cut_by_axes(
    maps: Callable[[Operator, Tensors], AxisMaps | None],
    along: str,
    *,
    aligned: int = 0,
    macs: Callable[[Operator, Tensors], int] = _no_products,
) -> OperatorRule:
    """The rule of operators whose attributes stay as they are under a cut.

    An input is cut along the axes that ``maps`` ties to output axes and whole along the others;
    every tied axis can be cut. None stands for operators that cannot be cut at all.
    """

    def axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
        return tuple(sorted({axis for axis_map in maps(op, tensors) or () for axis in axis_map}))

    def cut(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
        pairs = zip(op.inputs, maps(op, tensors) or (), strict=True)
        inputs = (_project(tensors[n], axis_map, region) if n else None for n, axis_map in pairs)
        return OperatorRegion(region, region, tuple(inputs))

    return OperatorRule(axes, cut, aligned, macs, along)


def whole(reason: str, macs: Callable[[Operator, Tensors], int] = _no_products) -> OperatorRule:
    """The rule of operators that are always computed whole, for ``reason``."""

    def cut(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
        raise ValueError(f"{op.op_type} is never cut: {reason}")

    return OperatorRule(lambda op, tensors: (), cut, macs=macs, why_whole=reason)


def _project(tensor: Tensor, axis_map: Mapping[int, int], region: Region) -> Region:
    start, stop = [0] * len(tensor.shape), list(tensor.shape)
    for output_axis, input_axis in axis_map.items():
        start[input_axis] = region.start[output_axis]
        stop[input_axis] = region.stop[output_axis]
    return Region(tuple(start), tuple(stop))


def broadcast_axes(shape: Sequence[int], output: Sequence[int]) -> dict[int, int] | None:
    """Tie an input's axes to the output's as numpy broadcasts; None if it does not.

    Axes of size 1 that are repeated are tied to nothing, so they stay whole.
    """
    offset = len(output) - len(shape)
    if offset < 0 or any(d not in (1, o) for d, o in zip(shape, output[offset:], strict=True)):
        return None
    return {offset + i: i for i, d in enumerate(shape) if d == output[offset + i]}


def box(ranges: Iterable[tuple[int, int]]) -> Region:
    """The region with these (start, stop), one an axis."""
    start, stop = zip(*ranges, strict=True)
    return Region(start, stop)


def empty_region(rank: int) -> Region:
    """An empty region."""
    return Region((0,) * rank, (0,) * rank)


def normalized(axis: int, rank: int) -> int:
    """``axis`` counted from the front."""
    return axis + rank if axis < 0 else axis


def output_shape(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    """The shape of the only output of ``op``."""
    return tensors[op.outputs[0]].shape
