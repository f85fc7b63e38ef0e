"""Operators that look along whole axes: reductions, normalizations, global pools, softmax."""

from collections.abc import Callable, Collection

from coexec.ir.graph import Operator
from coexec.ir.rules.base import (
    Links,
    Rule,
    Tensors,
    broadcast_link,
    linked,
    normalized,
    output_shape,
)

__all__ = ["RULES"]


def _except(axes: Collection[int], rank: int) -> dict[int, int]:
    return {axis: axis for axis in range(rank) if axis not in axes}


def _along(
    op: Operator, tensors: Tensors, axes: Collection[int], keepdims: bool
) -> list[dict[int, int]]:
    """The first input is whole along ``axes``, the other inputs are parameters."""
    rank = len(tensors[op.inputs[0]].shape)
    kept = [axis for axis in range(rank) if axis not in axes]
    link = {axis: axis for axis in kept} if keepdims else dict(enumerate(kept))
    return [link, *({} for _ in op.inputs[1:])]


def _reduce(op: Operator, tensors: Tensors) -> Links | None:
    rank = len(tensors[op.inputs[0]].shape)
    given = op.attributes.get("axes", ())
    if len(op.inputs) > 1 and op.inputs[1]:
        if 1 not in op.constants:
            return None  # the axes are known only when the model runs
        given = op.constants[1]
    axes = {normalized(int(a), rank) for a in given}  # type: ignore[union-attr]
    if not axes and not op.int("noop_with_empty_axes", 0):
        return None  # all axes are reduced
    return _along(op, tensors, axes, bool(op.int("keepdims", 1)))


def _arg(op: Operator, tensors: Tensors) -> Links:
    rank = len(tensors[op.inputs[0]].shape)
    axes = {normalized(op.int("axis", 0), rank)}
    return _along(op, tensors, axes, bool(op.int("keepdims", 1)))


def _cumsum(op: Operator, tensors: Tensors) -> Links | None:
    if 1 not in op.constants:
        return None
    rank = len(tensors[op.inputs[0]].shape)
    return _along(op, tensors, {normalized(int(op.constants[1][0]), rank)}, True)


def _softmax(op: Operator, tensors: Tensors) -> Links:
    """Before opset 13 ``axis`` is 1 by default and all axes behind it are normalized together.

    The opset of an operator is not known here, so the axes behind are whole in every case.
    """
    rank = len(output_shape(op, tensors))
    first = normalized(op.int("axis", 1), rank)
    return [_except(range(first, rank), rank)]


def _one_axis(default: int) -> Callable[[Operator, Tensors], Links]:
    def links(op: Operator, tensors: Tensors) -> Links:
        rank = len(output_shape(op, tensors))
        return [_except({normalized(op.int("axis", default), rank)}, rank)]

    return links


def _layer_norm(op: Operator, tensors: Tensors) -> Links | None:
    output = output_shape(op, tensors)
    first = normalized(op.int("axis", -1), len(output))
    found = [broadcast_link(tensors[n].shape, output) if n else {} for n in op.inputs]
    links = [{o: i for o, i in link.items() if o < first} for link in found if link is not None]
    return links if len(links) == len(found) else None


def _batch_norm(op: Operator, tensors: Tensors) -> Links | None:
    rank = len(output_shape(op, tensors))
    if rank < 2 or op.int("training_mode", 0) or not op.int("spatial", 1):
        return None
    return [_except((), rank), *({1: 0} for _ in op.inputs[1:])]


def _instance_norm(op: Operator, tensors: Tensors) -> Links:
    return [{0: 0, 1: 1}, *({1: 0} for _ in op.inputs[1:])]


def _global_pool(op: Operator, tensors: Tensors) -> Links:
    return [{0: 0, 1: 1}]


def _mean_variance(op: Operator, tensors: Tensors) -> Links:
    rank = len(output_shape(op, tensors))
    return [_except({normalized(a, rank) for a in op.ints("axes", (0, 2, 3))}, rank)]


def _across_channels(op: Operator, tensors: Tensors) -> Links:
    return [_except({1}, len(output_shape(op, tensors)))]


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

RULES: dict[str, Rule] = {
    **dict.fromkeys((f"Reduce{kind}" for kind in _REDUCTIONS), linked(_reduce)),
    **dict.fromkeys(("ArgMax", "ArgMin"), linked(_arg)),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), linked(_softmax)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), linked(_layer_norm)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), linked(_global_pool)),
    "BatchNormalization": linked(_batch_norm),
    "CumSum": linked(_cumsum),
    "InstanceNormalization": linked(_instance_norm),
    "LRN": linked(_across_channels),
    "LpNormalization": linked(_one_axis(-1)),
    "MeanVarianceNormalization": linked(_mean_variance),
}
