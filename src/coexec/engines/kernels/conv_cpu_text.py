"""The text of `conv_cpu`: loops over groups, rows and tiles, and the sums of a tile.

Layers that differ in sizes only share one text. Sizes are arguments, with the names that `conv_cpu`
declares. The properties of a `Form` decide how registers are used and how far loops are unrolled;
they are literals in the text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coexec.engines.kernels.base import indented
from coexec.engines.kernels.pairs import terms

Finish = Callable[[str, Sequence[str], str], list[str]]
"""Returns lines that store a finished sum, from its name, its position and a tag for variables."""


@dataclass(frozen=True, slots=True)
class Form:
    """Everything that the text depends on."""

    vector: str
    """The type of a block of channels."""
    pixels: tuple[int, ...]
    """Pixels of the larger tiles of a row, then of the tiles with one pixel less, if any."""
    blocks: int
    """Blocks of output channels in a tile."""
    stride: int
    """Distance of the input columns that neighbouring pixels read."""
    lanes: int
    """Input channels that are neighbours in memory; 1: planes are stored one after the other."""
    step: int
    """Input channels in a step of the innermost loop."""
    paired: bool
    """Whether a product takes two channels at once: 16-bit floats, with weights in pairs."""
    skips: bool
    """Whether taps are skipped for which a tile reads padding only: many with a large dilation."""
    held: bool
    """Whether weights are held in registers. With few registers GCC would load them again for each
    product."""
    chunked: bool
    """Whether a work item adds up ``blocks_each`` input blocks in all tiles before the next ones.
    Their weights stay in the first-level cache, and the sums in the memory of the thread."""

    @property
    def taken(self) -> int:
        """Input channels that a product takes."""
        return 2 if self.paired else 1


def text(form: Form, finish: Finish) -> list[str]:
    """The lines of the kernel.

    A work item computes some rows of the output, or some tiles of the only row.
    """
    lines = [
        "const int n = item_2;",
        "const int first_group = item_0 * groups_each;",
        "const int first_row = item_1 / across * rows_each;",
        "const int last_row = min(first_row + rows_each, rows);",
        "const int first_tile = item_1 % across * tiles_each;",
        "const int last_tile = min(first_tile + tiles_each, tiles);",
        f"const int first_px = first_tile * {form.pixels[0]} - max(first_tile - larger, 0);",
        f"const int last_px = last_tile * {form.pixels[0]} - max(last_tile - larger, 0);",
        f"const int larger_end = min(larger * {form.pixels[0]}, last_px);",
        "const int last_group = min(first_group + groups_each, groups);",
        "for (int group = first_group; group < last_group; group++) {",
        f"  const int block = first_block + group * {form.blocks};",
    ]
    rows = ["for (int row = first_row; row < last_row; row++) {", "  int px = first_px;"]
    for pixels, end in zip(form.pixels, ("larger_end", "last_px"), strict=False):
        rows.append(f"  for (; px < {end}; px += {pixels}) {{")
        rows += indented(_tile(form, pixels, finish), 2)
        rows.append("  }")
    rows.append("}")
    if form.chunked:
        rows = [
            "for (int first_i = 0; first_i < in_blocks; first_i += blocks_each) {",
            "  const int last_i = min(first_i + blocks_each, in_blocks);",
            f"  __global {form.vector}* sums = (__global {form.vector}*)thread_memory;",
            *indented(rows, 1),
            "}",
        ]
    return [*lines, *indented(rows, 1), "}"]


def _tile(form: Form, pixels: int, finish: Finish) -> list[str]:
    sums = [(p, o) for o in range(form.blocks) for p in range(pixels)]
    start, at = f"(__global const {form.vector}*)bias + group * {form.blocks}", "{1}"
    if form.chunked:
        start, at = f"first_i ? sums : {start}", f"{{0}} * (first_i ? {form.blocks} : 0) + {{1}}"
    # Compilers would keep the bias in registers that the innermost loop needs for weights.
    lines = [f"__global const {form.vector}* start = unknown({start});"]
    lines += [f"{form.vector} a{p}_{o} = start[{at.format(p, o)}];" for p, o in sums]
    lines += _sum(form, pixels)
    ends = list[str]()
    for p, o in sums:
        ends += finish(f"a{p}_{o}", ["n", f"block + {o}", "row", f"px + {p}"], f"_{p}_{o}")
    if form.chunked:
        kept = [f"sums[{p * form.blocks + o}] = a{p}_{o};" for p, o in sums]
        ends = ["if (last_i < in_blocks) {", *indented(kept, 1), "} else {", *indented(ends, 1)]
        ends += ["}", f"sums += {len(sums)};"]
    return [*lines, *ends]


def _sum(form: Form, pixels: int) -> list[str]:
    """Lines that add up the sums of a tile.

    Loops that run at least once test at their end: the compiler then keeps sums in registers.
    """
    block = "n * x_slices + i" if form.lanes > 1 else "n * in_channels"
    across = "1" if form.lanes > 1 else "plane"
    ix, last = f"px * {form.stride} + kx * dilation_w", (pixels - 1) * form.stride
    guard = f"if ({ix} + {last} >= image_left && {ix} < image_right) " if form.skips else ""
    taken = range(0, form.step, form.taken)
    steps = [line for c in taken for line in _step(form, pixels, c, across)]
    first_i, first_row, first, end = "0", "(long)group * steps", "0", "steps"
    if form.chunked:
        first_i, first, end = "first_i", "i * kernel_h", "last_i * kernel_h"
        first_row = f"({first_row} + {first})"
    return [
        f"int i = {first_i}, ky = 0;",
        f"long row_w = {first_row} * row_vectors;",
        f"for (int j = {first}; j < {end}; j++, row_w += row_vectors) {{",
        "  const int iy = row * stride_h - top + ky * dilation_h;",
        f"  const int line = ({block}) * in_h + iy;",
        "  const int channel_steps = i == in_blocks - 1 ? steps_last : steps_full;",
        "  if (++ky == kernel_h) { ky = 0; i++; }",
        "  if (iy < 0 || iy >= in_h) continue;",
        f"  long pixel = ((long)line * in_w + px * {form.stride}) * {form.lanes}, tap = row_w;",
        "  int kx = 0;",
        "  do {",
        f"    {guard}{{",
        "      long at = pixel, wi = tap;",
        "      int c = 0;",
        "      do {",
        *indented(steps, 4),
        f"        at += {form.step} * {across}; wi += {form.step // form.taken * form.blocks};",
        "      } while (++c < channel_steps);",
        "    }",
        f"    pixel += dilation_w * {form.lanes}; tap += tap_vectors;",
        "  } while (++kx < kernel_w);",
        "}",
    ]


def _step(form: Form, pixels: int, channel: int, across: str) -> list[str]:
    """Lines that multiply one channel of the input, or a pair of channels, with its weights."""
    at_weights = channel // form.taken * form.blocks
    vector, scalar, load, get, add = terms(form.vector, form.paired)
    weights = [f"{load}_w(wi + {at_weights + o})" for o in range(form.blocks)]
    weights = [f"held({w})" for w in weights] if form.held else weights
    lines = [f"const {vector} w{o} = {w};" for o, w in enumerate(weights)]
    for p in range(pixels):
        position = f"at + {channel} * {across} + {p * form.stride * form.lanes}"
        sums = " ".join(add.format(f"a{p}_{o}", f"w{o}", "f") for o in range(form.blocks))
        lines.append(f"{{ const {scalar} f = {get}_x({position}); {sums} }}")
    return ["{", *lines, "}"]
