"""The meaning of an engine's own operators, as far as it is needed to cut them in pieces."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coexec.arrays import Array
from coexec.graph.graph import Tensor
from coexec.graph.region import Region

__all__ = [
    "FILLED",
    "LAST",
    "PLAIN",
    "STANDARD",
    "WIDE",
    "Dialect",
    "Kind",
    "Layout",
    "as_it_lies",
    "declared_shape",
    "ends_with_blocks",
    "where_it_lies",
]

Kind = tuple[str, str]
"""Domain and type of an operator."""


Layout = int
"""`PLAIN`, `LAST`, `WIDE`, `FILLED`, or the number of channels in a block."""
PLAIN = 0
"""The model's layout."""
LAST = -1
"""Channels behind all other axes."""
WIDE = -2
"""The model's layout, but in float32 where the model has a narrower type: the layout of an engine
that computes in float32. Rounding at a border would change the numbers."""
FILLED = -3
"""The model's layout, but with the channels that fill the last block and the gaps. An engine uses
it for operators that do not compute in blocks, between others that do; it never crosses a border.
"""


@dataclass(frozen=True)
class Dialect:
    """The operators of an engine beside the standard ones, and its blocked layout.

    A tensor [N, C, H, W] in blocks of b lies in memory as [N, C / b, H, W, b]. Its declared shape
    stays [N, C, H, W], with C rounded up to whole blocks.
    """

    layout_ops: frozenset[Kind] = frozenset()
    """Operators that change only a tensor's layout, not its values."""
    like: Mapping[Kind, str] = field(default_factory=dict)
    """For each of its own operators, the standard one that reads the same regions. A fourth input
    of a convolution is added to its result."""
    block: int = 0
    """Number of channels in a block; 0: it has no such layout."""
    domain: str = ""
    """Domain of its operators that compute on blocked tensors."""
    enter: Kind = ("", "")
    """Makes a blocked tensor from a plain one."""
    leave: Kind = ("", "")
    """Makes a plain tensor from a blocked one; the attribute "channels" is its number of
    channels."""
    inner: Callable[[Tensor], Layout] | None = None
    """The layout of a tensor inside of an engine that computes standard operators, but holds some
    tensors in blocks meanwhile. Entering and leaving such blocks costs nothing inside of a module,
    and entering fills the last block."""

    widened: str = ""
    """Start of the names of the Casts by which it computes in float32 what the model has in a
    narrower type; "": it has none."""

    def is_free(self, kind: Kind) -> bool:
        """Whether an operator only enters blocks or leaves them, where that costs nothing."""
        return self.inner is not None and kind in (self.enter, self.leave)

    def held(self, tensor: Tensor) -> Layout:
        """The engine's layout of a tensor that the operators of its model read and write
        unchanged."""
        return PLAIN if self.inner is None else self.inner(tensor)

    def type_in(self, layout: Layout, tensor: Tensor) -> str:
        """The type of a tensor in a layout: blocks are wide, too, if an engine computes in
        float32."""
        wide = layout == WIDE or (layout > PLAIN and self.widened)
        return "float32" if wide else tensor.dtype

    def unblocked(self, layout: Layout, tensor: Tensor) -> Layout:
        """The layout without blocks that keeps the type that a tensor has in ``layout``."""
        return PLAIN if self.type_in(layout, tensor) == tensor.dtype else WIDE


def as_it_lies(array: Array, layout: Layout) -> Array:
    """A blocked tensor of declared shape [N, C, H, W] as [N, C / b, H, W, b]; others unchanged."""
    if layout <= 0:
        return array
    batch, channels, *spatial = array.shape
    return array.reshape(batch, channels // layout, *spatial, layout)


def where_it_lies(region: Region, layout: Layout) -> Region:
    """The region of a tensor in the array that `as_it_lies` makes of it."""
    if layout == LAST:
        start, stop = (_turned(ends) for ends in (region.start, region.stop))
        return Region(start, stop)
    if layout <= PLAIN:
        return region
    inside = region.with_axis(1, region.start[1] // layout, -(-region.stop[1] // layout))
    return Region((*inside.start, 0), (*inside.stop, layout))


def declared_shape(shape: Sequence[int], layout: Layout, filled: int) -> tuple[int, ...]:
    """The shape that a lowered model declares for a tensor of ``shape`` in a layout.

    Args:
        filled: its channels, with those that fill the last block.
    """
    if layout == LAST:
        return _turned(tuple(shape))
    return tuple(shape) if layout <= PLAIN else (shape[0], filled, *shape[2:])


def ends_with_blocks(region: Region, shape: Sequence[int], block: int) -> bool:
    """Whether a region of a tensor of ``shape`` begins and ends with whole blocks of channels."""
    start, stop = region.start[1], region.stop[1]
    return start % block == 0 and (stop % block == 0 or stop == shape[1])


def _turned(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (sizes[0], *sizes[2:], sizes[1])


STANDARD = Dialect()
"""The dialect of engines that compute standard operators on tensors in the model's layout."""
