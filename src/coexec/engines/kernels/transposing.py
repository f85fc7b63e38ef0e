"""Transposition of a block of channels, from the layout of the model into vectors and back.

Both layouts store the pixels of an image one after the other. The channels of a block, at as many
pixels as a block has channels, form a square of scalars: its rows are vectors in one layout, its
columns are vectors in the other layout.
"""

from collections.abc import Sequence

__all__ = ["transposed"]


def transposed(names: Sequence[str], tag: str = "") -> tuple[list[str], list[str]]:
    """Lines that transpose the square whose rows are the variables ``names``, and its new rows.

    Each step interleaves the first half of the rows with the second half, scalar by scalar. After
    log2(rows) steps, the square is transposed.
    """
    width, rows, lines, step = len(names), list(names), [], 0
    while 1 << step < width:
        new = []
        for row in range(width):
            upper, lower = rows[row // 2], rows[row // 2 + width // 2]
            first = row % 2 * (width // 2)
            lanes = [
                f"{r}.s{lane:x}"
                for lane in range(first, first + width // 2)
                for r in (upper, lower)
            ]
            new.append(f"t{step}_{row}{tag}")
            lines.append(f"const float{width} {new[-1]} = (float{width})({', '.join(lanes)});")
        rows, step = new, step + 1
    return lines, rows
