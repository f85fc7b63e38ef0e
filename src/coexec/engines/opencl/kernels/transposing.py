"""Pixels of a block of channels, from the model's layout into vectors of channels and back.

Both layouts have the pixels of an image one after the other. As many pixels as a block has
channels are a square of scalars: its rows are vectors in one layout, its columns in the other.
"""

from collections.abc import Sequence

__all__ = ["transposed"]


def transposed(names: Sequence[str], tag: str = "") -> tuple[list[str], list[str]]:
    """Lines that transpose the square whose rows are the variables ``names``, and its new rows.

    In each step, the first half of the rows is interleaved with the second one, scalar by scalar;
    after as many steps as halvings, each scalar is where it belongs.
    """
    width, rows, lines, step = len(names), list(names), [], 0
    while 1 << step < width:
        new = []
        for row in range(width):
            upper, lower = rows[row // 2], rows[row // 2 + width // 2]
            first = row % 2 * (width // 2)
            lanes = [f"{r}.s{lane:x}" for lane in range(first, first + width // 2)
                     for r in (upper, lower)]  # fmt: skip
            new.append(f"t{step}_{row}{tag}")
            lines.append(f"const float{width} {new[-1]} = (float{width})({', '.join(lanes)});")
        rows, step = new, step + 1
    return lines, rows
