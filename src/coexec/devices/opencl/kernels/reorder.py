"""Change a tensor's layout, not its values: on the way in and out, and between two kernels."""

from coexec.devices.opencl.architecture import Architecture
from coexec.devices.opencl.kernels.base import Launch, Source, Value
from coexec.devices.opencl.kernels.elementwise import coordinates

__all__ = ["reorder"]


def reorder(source: Value, target: Value, arch: Architecture) -> Launch:
    """Copy ``source`` to ``target``, of equal shape. Lanes past the last channel become zero."""
    text = Source("reorder", arch)
    text.read("x", source)
    text.write("y", target)
    if not target.block:
        names = ", ".join(f"p{axis}" for axis in range(len(target.shape)))
        text.lines(coordinates(target.shape))
        text.lines(f"  PUT_y(AT_y({names}), GET_x(AT_x({names})));")
        return text.launch((target.items,))
    n, c, h, w = target.shape
    b = target.block
    text.lines(
        f"  const int px = get_global_id(0), py = get_global_id(1);\n"
        f"  const int s = get_global_id(2) % {target.slices};\n"
        f"  const int n = get_global_id(2) / {target.slices};\n"
        f"  const int to = VEC_y(n, s, py, px) * {b};\n"
        f"  for (int lane = 0; lane < {b}; lane++) {{\n"
        f"    const int c = s * {b} + lane;\n"
        f"    PUT_y(to + lane, c < {c} ? GET_x(AT_x(n, min(c, {c - 1}), py, px)) : 0.0f);\n"
        f"  }}"
    )
    return text.launch((w, h, n * target.slices))
