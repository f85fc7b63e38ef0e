"""What an engine's own operators mean, as far as cutting them in pieces asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coexec.frontend.module import Array
from coexec.ir.region import Region

__all__ = ["STANDARD", "Dialect", "Kind", "blocked_region", "in_blocks"]

Kind = tuple[str, str]
"""Domain and type of an operator."""


@dataclass(frozen=True)
class Dialect:
    """The operators of an engine beside the standard ones, and its blocked layout.

    A tensor [N, C, H, W] in blocks of b lies in memory as [N, C / b, H, W, b]. Its declared shape
    stays [N, C, H, W], with C rounded up to whole blocks.
    """

    layout_ops: frozenset[Kind] = frozenset()
    """Those that only change a tensor's layout, not its values."""
    like: Mapping[Kind, str] = field(default_factory=dict)
    """By operator of its own, the standard one that reads the same regions. A fourth input of a
    convolution is added to its result."""
    block: int = 0
    """Channels in a block; 0: it has no such layout."""
    domain: str = ""
    """Its operators compute on blocked tensors."""
    enter: Kind = ("", "")
    """Makes a blocked tensor of a plain one."""
    leave: Kind = ("", "")
    """Makes a plain tensor of a blocked one; the attribute "channels" says how many it has."""


def in_blocks(array: Array, block: int) -> Array:
    """A blocked tensor of declared shape [N, C, H, W] as [N, C / b, H, W, b]; another as it is."""
    if not block:
        return array
    batch, channels, *rest = array.shape
    return array.reshape(batch, channels // block, *rest, block)


def blocked_region(region: Region, block: int) -> Region:
    """Where a region of a tensor lies in what `in_blocks` makes of it."""
    if not block:
        return region
    low, high = region.start[1] // block, -(-region.stop[1] // block)
    inside = region.with_axis(1, low, high)
    return Region((*inside.start, 0), (*inside.stop, block))


STANDARD = Dialect()
"""Of engines that compute standard operators on tensors in the model's layout."""
