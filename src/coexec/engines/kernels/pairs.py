"""Products of pairs of bfloat16 numbers on CPU cores.

Processors multiply two neighbouring bfloat16 numbers with two others and add both products to a
float32 sum in one instruction: VDPBF16PS of AVX512-BF16, BFDOT of Armv8.6. A pair is handled as one
32-bit integer. Neighbours along the inner axis of a product are a pair, so the left side has them
behind each other in memory, and weights are packed as [inner axis / 2][column][2].
"""

from typing import NamedTuple

from coexec.arrays import Array


class Terms(NamedTuple):
    """The words of a product of a vector of weights and a scalar, or of pairs of both."""

    vector: str
    """Type of the weights."""
    scalar: str
    load: str
    """Macro that reads weights, without the name of their array; ``get``: the same for a scalar."""
    get: str
    add: str
    """Statement with slots for the sum, the weights and the scalar."""


def terms(vector: str, paired: bool) -> Terms:
    """``vector``: the type of a vector of floats, of which pairs have as many."""
    if paired:
        whole = vector.replace("float", "int")
        return Terms(whole, "int", "PAIRS", "PAIR", "{0} = dot({0}, {1}, {2});")
    return Terms(vector, "float", "LOAD", "GET", "{0} += {1} * {2};")


def pairs(name: str, width: int) -> str:
    """Macros for a tensor or constant of 16-bit floats: PAIR_x(i), the two from position i on;
    PAIRS_x(i), the i-th vector of ``width`` pairs."""
    return (
        f"#define PAIR_{name}(i) vload_pair(i, {name})\n"
        f"#define PAIRS_{name}(i) vload_pairs{width}(i, {name})"
    )


def in_pairs(rows: Array, axis: int) -> Array:
    """The array with neighbours along ``axis``, of even length, as a further last axis of two."""
    shape = rows.shape
    split = rows.reshape(*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :])
    return split.transpose(*(a for a in range(split.ndim) if a != axis + 1), axis + 1)
