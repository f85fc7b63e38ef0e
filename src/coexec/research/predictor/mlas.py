"""Work of ONNX Runtime's kernels for a task, counted from the loops of its library MLAS.

Convolutions compute on blocks of 16 channels with AVX-512: up to four blocks of filters at once,
one row of the output at a time, in tiles of six columns and a remainder of three, two or one
columns. With AVX and its 16 registers, blocks have 8 channels, and tiles three columns with a
remainder of two or one. A column whose window reaches into the padding is a tile of its own. For
each tile, a loop runs over the taps of the filter and skips those in the padding. Blocks of input
channels are added to the output one after the other; the output is loaded and stored each time. 1x1
filters add 128 channels at a time.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coexec.engines.kernels.conv_winograd import beyond
from coexec.graph.graph import Operator, Tensor
from coexec.graph.rules.windows import Window, windows
from coexec.research.predictor.workloads import Workload, beside, plain_workload, together

_FILTERS = 4
"""Blocks of filters that are computed together."""
_TILES = {16: 6, 8: 3}
"""Columns of a tile by channels of a block."""
_LEAST_TILE = 3
_DEPTH = 128
"""Input channels that a 1x1 filter adds before the output is stored."""
_LATENCY = 4
"""Latency of a multiply-add, in cycles."""
_IN_FLIGHT = 448
"""Instructions in flight in a core: 224 to 512 in processors of the last ten years."""
_NEAR_BYTES = 2**15
_FAR_BYTES = 2**20
"""Rough capacities of a core's first and second cache for these tensors, beside other data."""

Tensors = Mapping[str, Tensor]


class _Blocked(NamedTuple):
    """A 2-D convolution on blocks of channels."""

    batch: int
    inputs: int
    """Input channels of a group, rounded up to whole blocks unless fewer than one block."""
    blocks: int
    """Blocks of output channels."""
    kernel: tuple[int, int]
    rows: Window
    columns: Window
    block: int

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def sets(self) -> list[int]:
        """Sizes of the sets of filter blocks that are computed together."""
        full, remainder = divmod(self.blocks, _FILTERS)
        return [_FILTERS] * full + [remainder] * (remainder > 0)


def workload(
    operators: Sequence[Operator], tensors: Tensors, compiled: str, block: int
) -> Workload:
    """The workload of a task that is one operator and the operators fused behind it.

    Args:
        compiled: types of ONNX Runtime's own operators; "" if they are not known, which counts no
            operators that change the layout.
        block: channels of a block.
    """
    first, *behind = operators
    if first.op_type == "Pad" and behind:
        first, *behind = behind
    names = compiled.split()
    blocked = block > 1 and ("nchwc.Conv" in names or not names)
    if first.op_type == "Conv" and blocked:
        conv = _conv(first, tensors, block)
        if conv is not None:
            kind, terms = _convolution(conv, first)
            reordered = _reordered(operators, tensors, names)
            shared = beside(operators, tensors, weights_bytes=_weights(conv))
            return Workload(kind, together(shared, terms, reordered))
    base = plain_workload(operators, tensors)
    kind = f"{base.kind}, blocked" if f"nchwc.{base.kind}" in names else base.kind
    return Workload(kind, together(base.terms, _reordered(operators, tensors, names)))


def _conv(op: Operator, tensors: Tensors, block: int) -> _Blocked | None:
    """The blocked convolution; None if ONNX Runtime does not compute it on blocks."""
    x, w = tensors[op.inputs[0]], tensors[op.inputs[1]]
    slides = windows(op, tensors, w.shape[2:])
    if len(x.shape) != 4 or slides is None or not w.constant:
        return None
    groups = op.int("group", 1)
    outputs, inputs = w.shape[:2]
    if groups > 1 and not (inputs == 1 and outputs == groups):
        if inputs % block or outputs // groups % block:
            return None
    elif groups > 1:
        inputs = 1
    if inputs >= block:
        inputs = -(-inputs // block) * block
    height, width = w.shape[2:]
    rows, columns = slides
    return _Blocked(x.shape[0], inputs, -(-outputs // block), (height, width), rows, columns, block)


def _convolution(conv: _Blocked, op: Operator) -> tuple[str, dict[str, float]]:
    if op.int("group", 1) > 1 and conv.inputs == 1:
        return "depthwise", _depthwise(conv)
    if conv.inputs < conv.block:
        return "few channels", _few(conv)
    if conv.taps == 1 and not any((conv.rows.begin, conv.columns.begin)):
        return "pointwise", _pointwise(conv)
    return "direct", _direct(conv)


def _tiles(columns: int, block: int) -> list[tuple[int, int]]:
    """The tiles of a row: pairs of the columns of a tile and the number of such tiles."""
    tile = _TILES.get(block, _LEAST_TILE)
    last = {0: (), 1: (1,), 2: (2,), 3: (3,), 4: (3, 1), 5: (3, 2)}[columns % tile]
    return [(tile, columns // tile), *((size, 1) for size in last)]


class _TiledRow(NamedTuple):
    """The tiles of a row of the output."""

    taps: list[tuple[int, float]]
    """Pairs of the columns of a tile and the taps of the filter's row over all such tiles. A column
    that reads padding is a tile of its own, with only the taps inside of the image."""
    tiles: int
    steps: int
    """Steps of the loops over taps. Each tile has equally many, because taps in the padding count
    as steps, too."""

    @staticmethod
    def of(conv: _Blocked) -> "_TiledRow":
        taps = conv.kernel[1]
        inside = _inside(conv.columns, taps)
        inner = sum(count == taps for count in inside)
        whole = _tiles(inner, conv.block)
        alone = (1, float(sum(inside) - inner * taps))
        tiles = sum(count for _, count in whole) + len(inside) - inner
        return _TiledRow(
            [*((columns, float(count * taps)) for columns, count in whole), alone],
            tiles,
            tiles * taps,
        )


def _inside(window: Window, taps: int) -> list[int]:
    """By position of the output, the number of the filter's taps that lie inside of the input."""
    step = (window.extent - 1) // (taps - 1) if taps > 1 else 1
    first = range(-window.begin, -window.begin + window.output * window.stride, window.stride)
    return [sum(0 <= low + k * step < window.size for k in range(taps)) for low in first]


def _waiting(blocks: int, columns: int, chain: int) -> float:
    """Idle cycles of one step of a tile.

    A sum is ready after `_LATENCY` cycles, and two products begin in each cycle. Near the end of a
    tile, the processor already computes the next tile instead of waiting.

    Args:
        chain: steps of a tile.
    """
    idle = max(0.0, _LATENCY - blocks * columns / 2)
    ahead = _IN_FLIGHT / (blocks * columns + blocks + columns)
    return idle * max(0.0, 1.0 - ahead / chain)


def _direct(conv: _Blocked) -> dict[str, float]:
    steps = conv.batch * sum(_inside(conv.rows, conv.kernel[0])) * conv.inputs
    passes = conv.batch * conv.inputs // conv.block
    row = _TiledRow.of(conv)
    image = conv.rows.output * conv.columns.output * conv.block * 4
    visits = passes * conv.rows.output * row.tiles
    products = steps * sum(taps * columns / 2 for columns, taps in row.taps) * conv.blocks
    chain = conv.block * conv.taps
    waits = tiles = far = streamed = 0.0
    for blocks in conv.sets:
        weights = blocks * conv.block**2 * conv.taps * 4
        waits += steps * sum(taps * _waiting(blocks, size, chain) for size, taps in row.taps)
        tiles += visits
        streamed += visits * weights * beyond(weights, _NEAR_BYTES)
        read = conv.rows.size * conv.columns.size * conv.block * 4
        far += passes * (image * blocks * 2 + read) * beyond(image * blocks + read, _FAR_BYTES)
    summed = passes * conv.blocks * image
    taps = float(steps // conv.block * row.steps * len(conv.sets))
    return {
        "products": products,
        "waits": waits,
        "tiles": tiles,
        "taps": taps,
        "summed": summed,
        "summed far": far,
        "streamed": streamed,
    }


def _pointwise(conv: _Blocked) -> dict[str, float]:
    dense = conv.rows.stride == conv.columns.stride == 1
    pixels = conv.rows.output * conv.columns.output
    row = _tiles(pixels if dense else conv.columns.output, conv.block)
    rows = conv.batch * (1 if dense else conv.rows.output)
    depth = min(_DEPTH, conv.inputs)
    passes = math.ceil(conv.inputs / _DEPTH)
    visits = rows * passes * sum(count for _, count in row)
    products = rows * conv.inputs * sum(count * size / 2 for size, count in row) * conv.blocks
    waits = tiles = far = streamed = 0.0
    for blocks in conv.sets:
        weights = blocks * conv.block * depth * 4
        waits += (
            rows * conv.inputs * sum(count * _waiting(blocks, size, depth) for size, count in row)
        )
        tiles += visits
        streamed += visits * weights * beyond(weights, _NEAR_BYTES)
        moved = pixels * 4 * (conv.inputs + (2 * passes - 1) * blocks * conv.block)
        far += conv.batch * moved * beyond(pixels * 4 * conv.inputs, _FAR_BYTES)
    summed = conv.batch * passes * conv.blocks * pixels * conv.block * 4
    return {
        "products": products,
        "waits": waits,
        "tiles": tiles,
        "summed": float(summed),
        "summed far": far,
        "streamed": streamed,
    }


def _few(conv: _Blocked) -> dict[str, float]:
    """Terms of a convolution that reads a row-major image channel by channel."""
    steps = conv.batch * sum(_inside(conv.rows, conv.kernel[0])) * conv.inputs
    passes = conv.batch * conv.inputs * conv.rows.output
    row = _TiledRow.of(conv)
    return {
        "products": steps * sum(taps * columns / 2 for columns, taps in row.taps) * conv.blocks,
        "waits": sum(
            steps * taps * _waiting(blocks, columns, conv.taps)
            for blocks in conv.sets
            for columns, taps in row.taps
        ),
        "tiles": float(passes * row.tiles * len(conv.sets)),
        "taps": float(steps * row.steps * len(conv.sets)),
        "summed": float(passes * conv.columns.output * conv.blocks * conv.block * 4),
    }


def _depthwise(conv: _Blocked) -> dict[str, float]:
    steps = conv.batch * sum(_inside(conv.rows, conv.kernel[0])) * conv.blocks
    passes = conv.batch * conv.blocks * conv.rows.output
    row = _TiledRow.of(conv)
    return {
        "waits": steps * sum(_waiting(1, columns, conv.taps) * taps for columns, taps in row.taps),
        "products": steps * sum(columns * taps for columns, taps in row.taps),
        "tiles": float(passes * row.tiles),
        "taps": float(steps * row.steps),
        "rows": float(passes),
    }


def _weights(conv: _Blocked) -> float:
    """Bytes of weights that are read. In a small image, some taps never lie inside."""
    axes = zip((conv.rows, conv.columns), conv.kernel, strict=True)
    used = math.prod(_used(window, taps) for window, taps in axes)
    return 4.0 * used * conv.inputs * conv.blocks * conv.block


def _used(window: Window, taps: int) -> int:
    """Number of taps that lie inside of the input for at least one position of the output."""
    step = (window.extent - 1) // (taps - 1) if taps > 1 else 1
    last = (window.output - 1) * window.stride - window.begin
    first = -window.begin
    return sum(first + k * step < window.size and last + k * step >= 0 for k in range(taps))


def _reordered(
    operators: Sequence[Operator], tensors: Tensors, names: Sequence[str]
) -> dict[str, float]:
    """Terms of the layout changes: operators besides the first one, and bytes that they convert."""
    input_bytes, output_bytes = (
        tensors[n].size_bytes for n in (operators[0].inputs[0], operators[-1].outputs[0])
    )
    left_bytes = [output_bytes] * names.count("nchwc.ReorderOutput")
    entered_bytes = [input_bytes] if names and names[0] == "nchwc.ReorderInput" else []
    entered_bytes += [output_bytes] if len(names) > 1 and names[-1] == "nchwc.ReorderInput" else []
    return {
        "nodes": float(max(0, len(names) - 1)),
        "entered": float(sum(entered_bytes)),
        "left": float(sum(left_bytes)),
        "far reordered": float(
            sum(n * beyond(n, _FAR_BYTES) for n in (*entered_bytes, *left_bytes))
        ),
    }
