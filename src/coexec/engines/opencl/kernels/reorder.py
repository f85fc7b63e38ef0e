"""Change a tensor's layout, not its values: on the way in and out, and between two kernels."""

from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.kernels.base import KernelLaunch, Source, Value
from coexec.engines.opencl.kernels.elementwise import coordinates

__all__ = ["reorder"]


def reorder(source: Value, target: Value, arch: Architecture) -> KernelLaunch:
    """Copy ``source`` to ``target``, of equal shape. Lanes past the last channel become zero.

    A work item moves the channels of one block at one pixel, or one scalar where neither side has
    blocks.
    """
    blocked = target if target.block else source
    text = Source("reorder", arch, sized=arch.family == "cpu" and bool(blocked.block))
    text.read("x", source)
    text.write("y", target)
    if not blocked.block:
        names = ", ".join(f"p{axis}" for axis in range(len(target.shape)))
        text.lines(coordinates(target.shape))
        text.lines(f"  PUT_y(AT_y({names}), GET_x(AT_x({names})));")
        return text.finish((target.items,))
    n, c, h, w = blocked.shape
    b, slices = blocked.block, text.size("slices", blocked.slices)
    channels = text.size("channels", c)
    text.lines(
        f"  const int px = get_global_id(0), py = get_global_id(1);\n"
        f"  const int s = get_global_id(2) % {slices}, n = get_global_id(2) / {slices};\n"
        f"  for (int lane = 0; lane < {b}; lane++) {{\n"
        f"    const int c = s * {b} + lane;"
    )
    if target.block:
        value = f"c < {channels} ? GET_x(AT_x(n, c, py, px)) : 0.0f"
        text.lines(f"    PUT_y(VEC_y(n, s, py, px) * {b} + lane, {value});")
    else:
        value = f"GET_x(VEC_x(n, s, py, px) * {b} + lane)"
        text.lines(f"    if (c < {channels}) PUT_y(AT_y(n, c, py, px), {value});")
    text.lines("  }")
    return text.finish((w, h, n * blocked.slices))
