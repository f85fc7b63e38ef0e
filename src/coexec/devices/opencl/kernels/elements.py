"""The loops around what a kernel does for one element of its result."""

from collections.abc import Sequence

from coexec.devices.opencl.kernels.base import Launch, Source, Value

__all__ = ["coordinates", "each_scalar", "each_vector"]


def coordinates(shape: Sequence[int], index: str = "get_global_id(0)", name: str = "p") -> str:
    """Lines that split the flat ``index`` of a work item into coordinates p0, p1, ..."""
    lines = [f"  int rest_{name} = {index};"]
    for axis in reversed(range(1, len(shape))):
        size = shape[axis]
        lines.append(f"  const int {name}{axis} = rest_{name} % {size}; rest_{name} /= {size};")
    return "\n".join([*lines, f"  const int {name}0 = rest_{name};"] if shape else lines)


def each_scalar(source: Source, y: Value, lines: Sequence[str], value: str) -> Launch:
    """Set every element of ``y``, declared by that name, to ``value``.

    ``lines`` stand before and may, as ``value``, use the element's coordinates p0, p1, ... A work
    item makes one scalar, or one vector of a blocked tensor lane by lane. Lanes past the last
    channel repeat that channel, so that they hold a number.
    """
    if not y.block:
        source.lines(coordinates(y.shape))
        source.lines(
            "\n".join(f"  {line}" for line in [*lines, f"PUT_y(get_global_id(0), {value});"])
        )
        return source.launch((y.items,))
    source.lines(_vector_of(y))
    source.lines(f"  for (int lane = 0; lane < {y.block}; lane++) {{")
    source.lines(f"    const int p1 = min(first + lane, {y.shape[1] - 1});")
    last = f"PUT_y(VEC_y(p0, s, p2, p3) * {y.block} + lane, {value});"
    source.lines("\n".join(f"    {line}" for line in [*lines, last]) + "\n  }")
    return source.launch(_vectors(y))


def each_vector(source: Source, y: Value, lines: Sequence[str], value: str) -> Launch:
    """Set every vector of channels of the blocked ``y``, declared by that name, to ``value``.

    Coordinates are p0, p1, p2, p3 as in `each_scalar`, p1 being the vector's first channel, and s
    is its slice.
    """
    source.lines(_vector_of(y))
    last = f"STORE_y(VEC_y(p0, s, p2, p3), {value});"
    source.lines("\n".join(f"  {line}" for line in ["const int p1 = first;", *lines, last]))
    return source.launch(_vectors(y))


def _vector_of(y: Value) -> str:
    return (
        f"  const int p3 = get_global_id(0), p2 = get_global_id(1);\n"
        f"  const int s = get_global_id(2) % {y.slices}, p0 = get_global_id(2) / {y.slices};\n"
        f"  const int first = s * {y.block};"
    )


def _vectors(y: Value) -> tuple[int, int, int]:
    n, _, h, w = y.shape
    return w, h, n * y.slices
