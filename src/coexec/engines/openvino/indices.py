"""Checks that the indices of a Gather lie inside of their axis.

For an index outside of the axis, OpenVINO returns zeros. Of an index with 64 bits, it uses 32 bits.
ONNX Runtime raises an error in both cases. So indices that are fed are checked before a run. For
indices that a program computes, the least and the largest one are further outputs of the program.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coexec.arrays import Array
from coexec.errors import ExecutionError

__all__ = ["Axis", "check_computed", "check_fed", "with_ends"]

_ON_THE_WAY = frozenset({"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


class Axis(NamedTuple):
    """An axis that a Gather reads."""

    node: str
    size: int
    fed: str | None
    """The model's input with the indices; None: the indices are computed."""

    def check(self, least: int, largest: int) -> None:
        """Check the least and the largest index.

        Raises:
            ExecutionError: one of them is outside of the axis.
        """
        if least < -self.size or largest >= self.size:
            wrong = least if least < -self.size else largest
            raise ExecutionError(
                f"node {self.node!r}: index {wrong} is outside of an axis of {self.size} elements, "
                f"which has {-self.size} to {self.size - 1}"
            )


def with_ends(model: Any, inputs: Mapping[str, int]) -> tuple[Axis, ...]:
    """The axes to which computed and fed indices of an `openvino.Model` refer.

    For each axis with computed indices, the model gets two more outputs behind its own: the least
    and the largest index. They are in the order of the axes.

    Args:
        inputs: by name, the numbers of the model's inputs.
    """
    from openvino import opset14

    names = {number: name for name, number in inputs.items()}
    fed = {port.get_node().get_name(): names.get(i) for i, port in enumerate(model.inputs)}
    index_axes = []
    for op in model.get_ordered_ops():
        if op.get_type_name() != "Gather" or _source(op.input_value(1)) == "Constant":
            continue
        axis = op.input_value(2).get_node()
        if axis.get_type_name() != "Constant":
            continue
        size = op.input_value(0).get_partial_shape()[int(axis.get_data().item())].get_length()
        name = fed.get(_start(op.input_value(1)).get_name())
        index_axes.append(Axis(op.get_friendly_name(), size, name))
        if name is None:
            indices = op.input_value(1)
            axes = opset14.constant(np.arange(len(indices.get_partial_shape())))
            for reduce in (opset14.reduce_min, opset14.reduce_max):
                model.add_results([opset14.result(reduce(indices, axes, False))])
    return tuple(index_axes)


def _start(port: Any) -> Any:
    node = port.get_node()
    while node.get_type_name() in _ON_THE_WAY:
        node = node.input_value(0).get_node()
    return node


def _source(port: Any) -> str:
    return str(_start(port).get_type_name())


def check_fed(axes: Sequence[Axis], arrays: Mapping[str, Array]) -> None:
    """
    Raises:
        ExecutionError: an index that is fed is outside of its axis.
    """
    for axis in axes:
        if axis.fed is not None:
            values = arrays[axis.fed]
            axis.check(int(values.min()), int(values.max()))


def check_computed(axes: Sequence[Axis], ends: Sequence[int]) -> None:
    """
    Raises:
        ExecutionError: an index that was computed is outside of its axis.
    """
    computed = [axis for axis in axes if axis.fed is None]
    for axis, least, largest in zip(computed, ends[::2], ends[1::2], strict=True):
        axis.check(least, largest)
