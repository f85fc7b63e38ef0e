"""What an index may be, and what to tell of one that is out of range."""

from dataclasses import dataclass

__all__ = ["IndexCheck"]


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What an element of a tensor may be."""

    op_type: str
    result: str
    """What the operator computes."""
    tensor: str
    """Where the number comes from."""
    low: int
    high: int
    size: str
    """Why: "axis 0 has 5 elements"."""

    def refusal(self, number: int) -> str:
        """What to tell the user of a ``number`` that is out of range."""
        return (f"{self.op_type} of {self.result!r}: {number} in {self.tensor!r} is out of range: "
                f"{self.size}, so it may be {self.low} to {self.high}; correct the input that it "
                f"comes from")  # fmt: skip
