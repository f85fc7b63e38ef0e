"""Shared text of kernels that move elements: each output element is some input element."""

from collections.abc import Sequence

from coexec.engines.kernels.base import KernelLaunch, Source, Value
from coexec.engines.kernels.elements import each_scalar, each_vector

__all__ = ["moved", "shifted"]


def moved(
    source: Source,
    x: Value,
    y: Value,
    coordinates: Sequence[str],
    *,
    lines: Sequence[str] = (),
    residue: int | None = None,
    inside: str = "",
    outside: str = "",
) -> KernelLaunch:
    """Set each element of ``y`` to the one of ``x``, declared by that name, at ``coordinates``.

    Args:
        source: declares ``x`` and everything else that ``lines`` use.
        coordinates: expressions of p0, p1, ..., the position in ``y``; never out of ``x`` where
            ``inside`` holds.
        lines: statements before the move.
        residue: given if neighbouring channels of ``y`` are neighbouring channels of ``x``: the
            remainder of a vector's first channel by the block. Vectors are then moved if both
            tensors are blocked. Other coordinates must be equal for all lanes of a vector.
        inside: the condition, if any, under which an element comes from ``x``; with a residue of 0,
            or with none.
        outside: the value of all other elements.
    """
    source.write("y", y)
    if residue is not None and x.block and y.block:
        shift_lines, value = shifted(x, coordinates, residue)
        if inside:
            value = f"{inside} ? {value} : ({source.arch.vector})({outside})"
        return each_vector(source, y, [*lines, *shift_lines], value)
    value = f"GET_x(AT_x({', '.join(coordinates)}))"
    return each_scalar(source, y, lines, f"{inside} ? {value} : {outside}" if inside else value)


def shifted(x: Value, coordinates: Sequence[str], residue: int) -> tuple[list[str], str]:
    """Lines, and the vector of channels of the blocked ``x`` that starts at ``coordinates``.

    ``residue`` is the remainder of the first channel by the block. Lanes that are not in ``x``,
    also those in front of its first channel, contain other elements of it.
    """
    n, c, y, x_ = coordinates
    if not residue:
        return [], f"LOAD_x(VEC_x({n}, ({c}) / {x.block}, {y}, {x_}))"
    vector, last = f"float{x.block}", x.slices - 1
    lines = [f"const int next = ({c} + {x.block - residue}) / {x.block};"]
    for name, slice_ in (("low", "next - 1"), ("high", "next")):
        position = f"VEC_x({n}, clamp({slice_}, 0, {last}), {y}, {x_})"
        lines.append(f"const {vector} {name} = LOAD_x({position});")
    lanes = [f"low.s{lane:x}" for lane in range(residue, x.block)]
    lanes += [f"high.s{lane:x}" for lane in range(residue)]
    return lines, f"({vector})({', '.join(lanes)})"
