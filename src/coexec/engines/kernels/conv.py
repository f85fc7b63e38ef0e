"""Conv: selects the variant for this processor."""

import math
from collections.abc import Callable, Mapping
from functools import partial

from coexec.engines.kernels import (
    conv_cpu,
    conv_depthwise,
    conv_direct,
    conv_few,
    conv_grouped,
    conv_images,
    conv_phases,
    conv_tiled,
    conv_winograd,
)
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, Value
from coexec.engines.kernels.conv_shape import ConvShape, computed_weights
from coexec.engines.kernels.conv_winograd_text import WinogradTile
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.tile_shapes import TileShape
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.engines.kernels.value import at
from coexec.engines.kernels.window_loops import grid, output_coordinates, over_taps
from coexec.graph.graph import Operator, Tensor
from coexec.graph.rules.windows import windows

Variants = Mapping[str, Callable[[], list[KernelLaunch]]]

_WINOGRAD_TILES = 3
"""Number of tiles of Winograd's method that are measured where variants are."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if windows(op, tensors, tensors[op.inputs[1]].shape[2:]) is None:
        return "the padding of Conv is negative or does not fit its output"
    return computed_weights(op, tensors)


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """The launches of the best variant: the first one by rule, or the fastest one as measured."""
    variants = _variants(node, context)
    return context.choose(f"conv {_key(node, context)}", variants)


def _key(node: Node, context: Context) -> str:
    shapes = [context.tensors[n].shape for n in node.inputs]
    epilogue = [op.op_type for op in node.epilogue]
    computed = [n for n in (*node.inputs, node.output) if n not in context.constants]
    layouts = [(value.block, value.last) for value in map(context.value, computed)]
    return f"{shapes} {layouts} {sorted(node.operator.attributes.items())} {epilogue}"


def _variants(node: Node, context: Context) -> Variants:
    """Variants by name, the most promising one first."""
    op = node.operator
    x, y = context.value(op.inputs[0]), context.value(node.output)
    on_cores = context.arch.family == "cpu"
    blocks = len(x.shape) == 4 and bool(y.block)
    if (
        on_cores
        and not blocks
        and conv_images.fits(op, context.tensors)
        and (not conv_few.fits(op, context))
    ):
        return {"images": lambda: conv_images.launches(node, context, launches)}
    if not blocks or op.inputs[0] in context.constants:
        return {"any": lambda: _any(node, context)}
    shape = ConvShape.of(op, context.tensors)
    if conv_depthwise.fits(shape, x):
        return {"depthwise": lambda: conv_depthwise.launches(node, context, shape)}
    if on_cores:
        return _on_cores(node, context, shape)
    if shape.groups > 1 or not conv_tiled.fits(shape, x):
        return {"any": lambda: _any(node, context)}
    return _on_gpu(node, context, shape)


def _on_gpu(node: Node, context: Context, shape: ConvShape) -> Variants:
    variants: dict[str, Callable[[], list[KernelLaunch]]] = {}
    for tile in ranked_on_gpu(shape, context.arch):
        if tile is None:
            variants["direct"] = partial(conv_direct.launches, node, context, shape)
        else:
            variants[f"tiled {tile}"] = partial(conv_tiled.launches, node, context, shape, tile)
    return variants


def ranked_on_gpu(shape: ConvShape, arch: Architecture) -> list[TileShape | None]:
    """The variants for a convolution on a GPU, the most promising one first: sizes of tiles, and
    None for the direct variant."""
    tiled = conv_tiled.tiles_for(shape, arch)
    return [*tiled, None] if arch.family == "nvidia" else [None, *tiled]


def _on_cores(node: Node, context: Context, shape: ConvShape) -> Variants:
    if shape.groups > 1:
        return {"grouped": lambda: conv_grouped.launches(node, context, shape)}
    x = context.value(node.operator.inputs[0])
    if conv_phases.fits(shape, x):
        return _of_phases(node, context, shape)
    variants: dict[str, Callable[[], list[KernelLaunch]]] = {}
    for tile in ranked_on_cores(shape, x, context.arch):
        if tile is None:
            variants["direct"] = partial(conv_cpu.launches, node, context, shape)
        else:
            make = partial(conv_winograd.launches, node, context, shape, tile)
            variants[f"winograd {tile}"] = make
    return variants


def _of_phases(node: Node, context: Context, shape: ConvShape) -> Variants:
    def in_phases() -> list[KernelLaunch]:
        first, inner, inside = conv_phases.over_phases(node, context, shape)
        return [first, *launches(inner, inside)]

    direct = {"direct": lambda: conv_cpu.launches(node, context, shape)}
    if has_phases(shape, context.arch):
        return {"phases": in_phases, **direct}
    return {**direct, "phases": in_phases}


def has_phases(shape: ConvShape, arch: Architecture) -> bool:
    """Whether a convolution that can be one of phases takes less time so."""
    units, inner = arch.compute_units, conv_phases.phases(shape)
    tiles = conv_winograd.tiles_of(inner)
    apart_s = min((conv_winograd.seconds(inner, tile, units) for tile in tiles), default=math.inf)
    return apart_s < conv_cpu.seconds(shape) / units


def ranked_on_cores(shape: ConvShape, x: Value, arch: Architecture) -> list[WinogradTile | None]:
    """The variants for a convolution on CPU cores, the most promising one first: the best tiles of
    Winograd's method, and None for the direct variant."""
    units = arch.compute_units
    tiles = {t: conv_winograd.seconds(shape, t, units) for t in conv_winograd.tiles_for(shape, x)}
    best = sorted(tiles, key=tiles.__getitem__)[:_WINOGRAD_TILES]
    seconds: dict[WinogradTile | None, float] = {
        None: conv_cpu.seconds(shape, paired=x.half) / units,
        **{tile: tiles[tile] for tile in best},
    }
    return sorted(seconds, key=seconds.__getitem__)


def _any(node: Node, context: Context) -> list[KernelLaunch]:
    """The general variant: a work item computes one scalar. Neighbours are neighbours along the
    last axis, and share weights.

    It is for what the others do not support: on GPUs one or three spatial axes, and groups that are
    not whole blocks of channels.
    """
    op = node.operator
    if conv_few.fits(op, context):
        return conv_few.launches(node, context)
    weight = context.tensors[op.inputs[1]].shape
    slides = windows(op, context.tensors, weight[2:])
    assert slides is not None
    source = Source("conv_any", context.arch)
    for argument, name in zip(("x", "w", "bias"), op.inputs, strict=False):
        if name:
            source.read(argument, context.operand(name))
    output = Output(source, context, node, scalar=True)
    shape = output.value.shape
    per_group = weight[0] // op.int("group", 1)
    lines, (n, c) = output_coordinates(shape[2:], shape[:2])
    start = "GET_bias(AT_bias(channel))" if op.inputs[2:] and op.inputs[2] else "0.0f"
    axes = range(len(slides))
    element = at("x", [n, f"channel / {per_group} * {weight[1]} + c", *(f"i{a}" for a in axes)])
    factor = at("w", ["channel", "c", *(f"k{a}" for a in axes)])
    dilations = op.ints("dilations", (1,) * len(slides))
    take = f"acc += GET_x({element}) * GET_w({factor});"
    bounds, loops = over_taps(slides, dilations, [take])
    lines += [
        f"const int channel = {c};",
        f"float acc = {start};",
        *bounds,
        f"for (int c = 0; c < {weight[1]}; c++)",
        *loops,
    ]
    lines += output.store("acc", [n, "channel", *(f"o{a}" for a in axes)])
    source.lines(lines)
    return [source.finish(grid(shape[2:], math.prod(shape[:2])))]


_REFUSED = "computed weights; padding that does not fit the output"
KERNELS = {"Conv": Kernel(launches, FLOAT32, why_not, _REFUSED, takes_epilogue=True)}
