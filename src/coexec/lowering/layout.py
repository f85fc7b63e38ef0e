"""Layouts: how tensors lie in memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coexec.arrays import Array
from coexec.graph.graph import Tensor
from coexec.graph.region import Region

Order = Literal["NCHW", "NHWC"]
"""Order of the axes, also with more or fewer than two spatial ones."""

_TEXT = re.compile(
    r"(?P<order>in NHWC)?"
    r"( ?in blocks of (?P<block>\d+))?"
    r"( ?in (?P<stored_type>(?!NHWC|blocks)\w+))?"
    r"(?P<padded> ?with padded channels)?"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory, by what differs from the model.

    A tensor [N, C, H, W] in blocks of b lies in memory as [N, C / b, H, W, b]. A model declares it
    as [N, C, H, W], with C rounded up to whole blocks.
    """

    order: Order = "NCHW"
    block: int = 0
    """Number of channels in a block; 0: there are no blocks."""
    stored_type: str = ""
    """Type of the elements; "": the type in the model. An engine that computes a float16 model in
    float32 stores float32, because rounding at a border would change the numbers."""
    padded: bool = False
    """Whether there may be more channels than in the model: those that fill the last block, and
    gaps between joined tensors. Always true in blocks. Without blocks, an engine uses it only for
    operators between others that compute in blocks, and it never crosses a border."""

    def __post_init__(self) -> None:
        if self.block and not self.padded:
            raise ValueError("blocks are filled up: use blocks_of")

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The layout of which `str` is ``text``.

        Raises:
            ValueError: there is none.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no layout; an example is 'in blocks of 8'")
        block = int(match["block"] or 0)
        order: Order = "NHWC" if match["order"] else "NCHW"
        return cls(order, block, match["stored_type"] or "", bool(block or match["padded"]))

    def __str__(self) -> str:
        """What differs from the model, in words behind a tensor's name; "" if nothing does."""
        phrases = [
            "in NHWC" if self.order == "NHWC" else "",
            f"in blocks of {self.block}" if self.block else "",
            f"in {self.stored_type}" if self.stored_type else "",
            "with padded channels" if self.padded and not self.block else "",
        ]
        return " ".join(phrase for phrase in phrases if phrase)

    @property
    def is_blocked(self) -> bool:
        """Whether channels lie in blocks."""
        return self.block > 0

    @property
    def is_reordered(self) -> bool:
        """Whether elements lie in another order than in the model."""
        return self.is_blocked or self.order != "NCHW"

    @property
    def is_plain(self) -> bool:
        """Whether the elements are those of the model, in its order, except for their type."""
        return not self.is_reordered and not self.padded

    @property
    def unblocked(self) -> "Layout":
        """The plain layout with the same type of elements."""
        return Layout(stored_type=self.stored_type)

    def dtype_of(self, tensor: Tensor) -> str:
        """The type of a tensor's elements in this layout."""
        return self.stored_type or tensor.dtype

    def view(self, array: Array, region: Region) -> Array:
        """A view of a region of ``array``, which has the declared shape, with the axes as they lie
        in memory."""
        if self.order == "NHWC":
            region = Region(_channels_last(region.start), _channels_last(region.stop))
        elif self.is_blocked:
            batch, channels, *spatial = array.shape
            array = array.reshape(batch, channels // self.block, *spatial, self.block)
            start, stop = region.start[1] // self.block, -(-region.stop[1] // self.block)
            region = region.with_axis(1, start, stop)
        index: Any = (*region.slices, ...)  # with an ellipsis, a scalar has a view, too
        view: Array = array[index]
        return view

    def declared_shape(self, shape: Sequence[int], channels: int) -> tuple[int, ...]:
        """The shape that a lowered model declares for a tensor of ``shape``.

        Args:
            channels: number of channels in blocks, with those that fill the last block.
        """
        if self.order == "NHWC":
            return _channels_last(shape)
        return (shape[0], channels, *shape[2:]) if self.is_blocked else tuple(shape)

    def has_whole_blocks(self, region: Region, shape: Sequence[int]) -> bool:
        """Whether a region of a tensor of ``shape`` begins and ends where blocks do."""
        if not self.is_blocked:
            return True
        start, stop = region.start[1], region.stop[1]
        return start % self.block == 0 and (stop % self.block == 0 or stop == shape[1])


PLAIN = Layout()
"""The model's layout."""
NHWC = Layout(order="NHWC")
WIDE = Layout(stored_type="float32")
"""The model's layout, but in float32 where the model has a narrower type."""
PADDED = Layout(padded=True)


def blocks_of(block: int, stored_type: str = "") -> Layout:
    """The layout with so many channels in a block; `PLAIN` for 0."""
    return Layout(block=block, stored_type=stored_type, padded=True) if block else PLAIN


def _channels_last(sizes: Sequence[int]) -> tuple[int, ...]:
    return (sizes[0], *sizes[2:], sizes[1])
