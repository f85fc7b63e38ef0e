"""Operators that look along whole axes: reductions, normalizations, global pools, softmax."""

from collections.abc import Callable, Collection

from coexec.graph.graph import Operator
from coexec.graph.rules.base import (
    AxisMaps,
    OperatorRule,
    Tensors,
    broadcast_axes,
    cut_by_axes,
    normalized,
    output_shape,
)


def _except(axes: Collection[int], rank: int) -> dict[int, int]:
    return {axis: axis for axis in range(rank) if axis not in axes}


def _along(
    op: Operator, tensors: Tensors, axes: Collection[int], keepdims: bool
) -> list[dict[int, int]]:
    """The first input is whole along ``axes``, the other inputs are parameters."""
    rank = len(tensors[op.inputs[0]].shape)
    kept = [axis for axis in range(rank) if axis not in axes]
    axis_map = {axis: axis for axis in kept} if keepdims else dict(enumerate(kept))
    return [axis_map, *({} for _ in op.inputs[1:])]


def _reduce(op: Operator, tensors: Tensors) -> AxisMaps | None:
    rank = len(tensors[op.inputs[0]].shape)
    numbers = op.attributes.get("axes", ())
    if len(op.inputs) > 1 and op.inputs[1]:
        if 1 not in op.constants:
            return None  # the axes are known only when the model runs
        numbers = op.constants[1]
    axes = {normalized(int(a), rank) for a in numbers}  # type: ignore[union-attr]
    if not axes and not op.int("noop_with_empty_axes", 0):
        return None  # all axes are reduced
    return _along(op, tensors, axes, bool(op.int("keepdims", 1)))


def _arg(op: Operator, tensors: Tensors) -> AxisMaps:
    rank = len(tensors[op.inputs[0]].shape)
    axes = {normalized(op.int("axis", 0), rank)}
    return _along(op, tensors, axes, bool(op.int("keepdims", 1)))


def _cumsum(op: Operator, tensors: Tensors) -> AxisMaps | None:
    if 1 not in op.constants:
        return None
    rank = len(tensors[op.inputs[0]].shape)
    return _along(op, tensors, {normalized(int(op.constants[1][0]), rank)}, True)


def _softmax(op: Operator, tensors: Tensors) -> AxisMaps:
    """Before opset 13 ``axis`` is 1 by default and all axes behind it are normalized together.

    The opset of an operator is not known here, so the axes behind are whole in every case.
    """
    rank = len(output_shape(op, tensors))
    first = normalized(op.int("axis", 1), rank)
    return [_except(range(first, rank), rank)]


def _one_axis(default: int) -> Callable[[Operator, Tensors], AxisMaps]:
    def maps(op: Operator, tensors: Tensors) -> AxisMaps:
        rank = len(output_shape(op, tensors))
        return [_except({normalized(op.int("axis", default), rank)}, rank)]

    return maps


def _layer_norm(op: Operator, tensors: Tensors) -> AxisMaps | None:
    output = output_shape(op, tensors)
    first = normalized(op.int("axis", -1), len(output))
    axis_maps = [broadcast_axes(tensors[n].shape, output) if n else {} for n in op.inputs]
    maps = [
        {o: i for o, i in axis_map.items() if o < first}
        for axis_map in axis_maps
        if axis_map is not None
    ]
    return maps if len(maps) == len(axis_maps) else None


def _batch_norm(op: Operator, tensors: Tensors) -> AxisMaps | None:
    rank = len(output_shape(op, tensors))
    if rank < 2 or op.int("training_mode", 0) or not op.int("spatial", 1):
        return None
    return [_except((), rank), *({1: 0} for _ in op.inputs[1:])]


def _instance_norm(op: Operator, tensors: Tensors) -> AxisMaps:
    return [{0: 0, 1: 1}, *({1: 0} for _ in op.inputs[1:])]


def _global_pool(op: Operator, tensors: Tensors) -> AxisMaps:
    return [{0: 0, 1: 1}]


def _across_channels(op: Operator, tensors: Tensors) -> AxisMaps:
    return [_except({1}, len(output_shape(op, tensors)))]


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

RULES: dict[str, OperatorRule] = {
    **dict.fromkeys(
        (f"Reduce{kind}" for kind in _REDUCTIONS), cut_by_axes(_reduce, "axes that are not reduced")
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), cut_by_axes(_arg, "all axes but `axis`")),
    **dict.fromkeys(
        ("Hardmax", "LogSoftmax", "Softmax"), cut_by_axes(_softmax, "axes before `axis`")
    ),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization"), cut_by_axes(_layer_norm, "axes before `axis`")
    ),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
        cut_by_axes(_global_pool, "batch, channels"),
    ),
    "BatchNormalization": cut_by_axes(_batch_norm, "all axes"),
    "CumSum": cut_by_axes(_cumsum, "all axes but `axis`"),
    "InstanceNormalization": cut_by_axes(_instance_norm, "batch, channels"),
    "LRN": cut_by_axes(_across_channels, "all axes but the channels"),
    "LpNormalization": cut_by_axes(_one_axis(-1), "all axes but `axis`"),
}
