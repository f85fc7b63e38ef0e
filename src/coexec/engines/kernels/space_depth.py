"""DepthToSpace and SpaceToDepth: squares of pixels become channels, or the reverse."""

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.gather_text import moved

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """Whole vectors move where each pixel of a square has whole blocks of channels."""
    op = node.operator
    source = Source("space_depth", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    y = context.value(node.output)
    size = op.int("blocksize", 1)
    together = op.text("mode", "DCR") == "DCR"
    if op.op_type == "SpaceToDepth":
        channels = x.shape[1]
        channel, inside = f"p1 % {channels}", f"p1 / {channels}"
        if not together:
            channel, inside = f"p1 / {size * size}", f"p1 % {size * size}"
        row, column = f"p2 * {size} + {inside} / {size}", f"p3 * {size} + {inside} % {size}"
        coordinates = ["p0", channel, row, column]
    else:
        channels = y.shape[1]
        inside = f"(p2 % {size} * {size} + p3 % {size})"
        channel = f"{inside} * {channels} + p1" if together else f"p1 * {size * size} + {inside}"
        coordinates = ["p0", channel, f"p2 / {size}", f"p3 / {size}"]
    residue = 0 if together and channels % context.arch.block == 0 else None
    return [moved(source, x, y, coordinates, residue=residue)]


KERNELS = dict.fromkeys(("DepthToSpace", "SpaceToDepth"), Kernel(launches))
