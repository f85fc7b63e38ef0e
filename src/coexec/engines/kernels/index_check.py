"""The range of an index, and the message about an index out of range."""

from dataclasses import dataclass

__all__ = ["IndexCheck"]


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """The valid range of the elements of a tensor."""

    op_type: str
    result: str
    """Name of the operator's result."""
    tensor: str
    """Name of the tensor that contains the index."""
    low: int
    high: int
    size: str
    """Reason for the range: "axis 0 has 5 elements"."""

    def refusal(self, number: int) -> str:
        """Message for the user about a ``number`` out of range."""
        return (
            f"{self.op_type} of {self.result!r}: {number} in {self.tensor!r} is out of range: "
            f"{self.size}, so it may be {self.low} to {self.high}; correct the input that it "
            f"comes from"
        )
