"""The meaning of an engine's own operators, as far as it is needed to cut them in pieces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coexec.graph.graph import Tensor
from coexec.lowering.layout import PLAIN, Layout, blocks_of

Kind = tuple[str, str]
"""Domain and type of an operator."""


@dataclass(frozen=True)
class Dialect:
    """The operators of an engine beside the standard ones, and its blocked layout."""

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

    def inner_layout(self, tensor: Tensor) -> Layout:
        """The engine's layout of a tensor that the operators of its model read and write
        unchanged."""
        return PLAIN if self.inner is None else self.inner(tensor)

    def blocked_layout(self, dtype: str) -> Layout:
        """The blocked layout of a tensor that has this type in the model."""
        return blocks_of(self.block, "float32" if self.widened and dtype != "float32" else "")


STANDARD = Dialect()
"""The dialect of engines that compute standard operators on tensors in the model's layout."""
