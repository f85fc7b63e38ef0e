"""Workloads of a task's kernels, counted by the generators of these kernels: tiles, bands, chunks.

Convolutions, and on CPU cores matrix products, are counted as they are generated. The workload of
any other operator follows from what it computes and moves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coexec.engines.kernels import (
    conv,
    conv_cpu,
    conv_depthwise,
    conv_direct,
    conv_grouped,
    conv_phases,
    conv_tiled,
    conv_winograd,
    gemm,
    gemm_cpu,
)
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Context, Node, Value
from coexec.engines.kernels.conv_shape import ConvShape
from coexec.engines.kernels.product import Product
from coexec.graph.graph import Operator, Tensor
from coexec.graph.rules.windows import windows
from coexec.research.predictor.workloads import Workload, beside, plain_workload, together

Tensors = Mapping[str, Tensor]


def workload(operators: Sequence[Operator], tensors: Tensors, arch: Architecture) -> Workload:
    """Workload of a task: one operator, and the element-wise operators fused behind it."""
    heads = [op for op in operators if op.op_type in ("Conv", "Gemm", "MatMul")]
    head = heads[0] if heads else operators[0]
    context = Context(arch, tensors, {})
    kind_and_terms = None
    if head.op_type == "Conv":
        kind_and_terms = _convolution(head, context)
    elif head.op_type in ("Gemm", "MatMul") and arch.family == "cpu":
        kind_and_terms = _product(head, context)
    if kind_and_terms is None:
        return _plain(operators, tensors, context)
    kind, terms = kind_and_terms
    return Workload(kind, together(terms, beside(operators, tensors)))


def _plain(operators: Sequence[Operator], tensors: Tensors, context: Context) -> Workload:
    """Workload of any operator. Row-major tensors have a kind of their own: they are computed
    scalar by scalar."""
    work = plain_workload(operators, tensors)
    blocked = context.value(operators[-1].outputs[0]).block
    return work if blocked else Workload(f"{work.kind}, row-major", work.terms)


def _convolution(op: Operator, context: Context) -> tuple[str, dict[str, float]] | None:
    """Kind and terms of a convolution of images. None if the result is not in blocks, or if the
    weights are computed."""
    x, y, w = (context.value(n) for n in (op.inputs[0], op.outputs[0], op.inputs[1]))
    tensors = context.tensors
    fixed = all(tensors[n].constant for n in op.inputs[1:] if n)
    if len(x.shape) != 4 or not y.block or not fixed or windows(op, tensors, w.shape[2:]) is None:
        return None
    shape, arch = ConvShape.of(op, tensors), context.arch
    if conv_depthwise.fits(shape, x):
        return "depthwise", conv_depthwise.steps(arch, shape, y)
    if shape.groups > 1:
        return ("grouped", conv_grouped.steps(arch, shape)) if arch.family == "cpu" else None
    if arch.family != "cpu":
        return _on_gpu(arch, shape) if conv_tiled.fits(shape, x) else None
    if conv_phases.fits(shape, x) and conv.has_phases(shape, arch):
        inner = conv_phases.phases(shape)
        size = (inner.batch, inner.in_channels, inner.in_h, inner.in_w)
        x = replace(x, shape=size, block=arch.block)
        kind, terms = _of_blocks(inner, x, y, arch)
        return f"phases, {kind}", terms
    return _of_blocks(shape, x, y, arch)


def _of_blocks(
    shape: ConvShape, x: Value, y: Value, arch: Architecture
) -> tuple[str, dict[str, float]]:
    """Kind and terms on CPU cores, of one group."""
    best = conv.ranked_on_cores(shape, x, arch)[0]
    if best is not None:
        return "winograd", conv_winograd.steps(arch, shape, x, y, best)
    kind = "few channels" if not x.block else "pointwise" if shape.pointwise else "direct"
    return kind, conv_cpu.steps(arch, shape, x)


def _on_gpu(arch: Architecture, shape: ConvShape) -> tuple[str, dict[str, float]]:
    """Kind and terms on a GPU. All filters share the kind of a tile size, as such tiles are
    computed alike."""
    tile = conv.ranked_on_gpu(shape, arch)[0]
    if tile is None:
        return "direct", conv_direct.steps(arch, shape)
    kind = f"tiles of {tile.height} x {tile.width}, {tile.parts} parts"
    return kind, conv_tiled.steps(arch, shape, tile)


def _product(op: Operator, context: Context) -> tuple[str, dict[str, float]] | None:
    """Kind and terms of a matrix product; None if a block of channels is a block of matrices."""
    if gemm.is_lane_by_lane(Node(op), context):
        return None
    product = Product.of(op, context)
    constant = context.tensors[op.inputs[1]].constant
    steps = gemm_cpu.steps(context.arch, product, constant)
    return "Gemm" if constant else "Gemm of two tensors", {
        name: math.prod(product.batch) * count for name, count in steps.items()
    }
