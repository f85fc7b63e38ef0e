"""Maxima and minima of rows with NaN, as ONNX Runtime computes them on x86.

ONNX does not define the maximum of NaN and a number. In ONNX Runtime it follows from the
instructions: always the second operand, or always the first. So its result depends on the order in
which a row is folded: NaN may hide the numbers before it, or be hidden by them. Kernels first fold
in any order, such that a NaN anywhere makes the result NaN.

If ONNX Runtime's order follows from the row alone, such rows are folded again by the lines of this
module, one element after the other in that order. This is so for rows of neighbours, and for pools
of images in blocks of channels. Elsewhere the order depends on shapes, threads and the processor:
there the result stays NaN.
"""

from collections.abc import Callable, Sequence

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import indented
from coexec.engines.kernels.row_kernel import RowKernel

__all__ = ["in_blocks", "in_eigens_order", "in_pools_order", "refolded"]

Load = Callable[[str], str]
"""The element of a row by its index."""


def refolded(rows: RowKernel, name: str, lines: Callable[[Load], Sequence[str]]) -> list[str]:
    """Lines that replace NaN in ``name``, the result of a row, by ``exact``. The lines of ``lines``
    declare ``exact``."""
    layout = rows.layout
    if not layout.side_by_side:
        inner = lines(layout.element)
        return [f"if ({name} != {name}) {{", *(f"  {i}" for i in inner), f"  {name} = exact;", "}"]
    block = layout.block
    lane_names = [f"{name}.s{lane:x}" for lane in range(block)]
    return [
        f"if (any({name} != {name})) {{",
        f"  float lanes[{block}] = {{{', '.join(lane_names)}}};",
        f"  for (int lane = 0; lane < {block}; lane++) {{",
        f"    const int c = p1 * {block} + lane;",
        f"    if (lanes[lane] == lanes[lane] || c >= {layout.channels}) continue;",
        *indented(lines(lambda index: layout.element(index, "c")), 2),
        "    lanes[lane] = exact;",
        "  }",
        *(f"  {text} = lanes[{lane}];" for lane, text in enumerate(lane_names)),
        "}",
    ]


def in_eigens_order(
    load: Load, count: int, better: str, start: str, ctype: str = "float"
) -> list[str]:
    """Lines that fold neighbours in the order of Eigen.

    It folds two vectors of 16 bytes, which begin at multiples of 16 bytes in memory, and then the
    elements before and behind them.

    Args:
        start: position at which the row begins in a row-major tensor, in elements.
    """
    width = 2 if ctype == "double" else 4

    def taken(name: str, value: str) -> str:
        return f"{{ {_unless_nan(name, value, better, ctype)} }}"

    each = f"for (int j = 0; j < {width}; j++)"
    across = (("part[0]", "part[2]"), ("part[1]", "part[3]"), ("part[0]", "part[1]"))
    return [
        f"const int lead = min({count}, ({width} - ({start}) % {width}) % {width});",
        f"const int body = ({count} - lead) / {width} * {width};",
        f"const int pairs = body / {2 * width} * {2 * width};",
        f"{ctype} part[{2 * width}], exact = {load('0')};",
        f"for (int j = 0; j < min(body, {2 * width}); j++) part[j] = {load('lead + j')};",
        f"for (int k = {2 * width}; k < pairs; k++) "
        f"{taken(f'part[k % {2 * width}]', load('lead + k'))}",
        f"if (body > {width}) {each} {taken('part[j]', f'part[j + {width}]')}",
        f"if (body > {width} && body > pairs) {each} {taken('part[j]', load('lead + pairs + j'))}",
        "if (body) {",
        *(f"  {taken(a, b)}" for a, b in across[-1 if width == 2 else 0 :]),
        "  exact = part[0];",
        "}",
        f"for (int k = 0; k < {count}; k++) {{",
        f"  if (k < lead || k >= lead + body) {taken('exact', load('k'))}",
        "}",
    ]


def in_blocks(shape: Sequence[int], arch: Architecture) -> bool:
    """Whether ONNX Runtime pools an image in blocks of channels: of 8, or of 16 with AVX-512.

    Then it folds the elements of a window one after the other, and takes the later one of NaN and a
    number.
    """
    return len(shape) == 4 and shape[1] % max(8, arch.block) == 0


def in_pools_order(load: Load, count: int) -> list[str]:
    """Lines that fold in the order of ONNX Runtime's global pools of images in blocks."""
    latter = f"const float w = {load('k')}; exact = exact > w ? exact : w;"
    return ["float exact = -INFINITY;", f"for (int k = 0; k < {count}; k++) {{ {latter} }}"]


def _unless_nan(name: str, value: str, better: str, ctype: str = "float") -> str:
    """The statement that takes ``value`` if it is better; not if either is NaN."""
    return f"const {ctype} w = {value}; if (w {better} {name}) {name} = w;"
