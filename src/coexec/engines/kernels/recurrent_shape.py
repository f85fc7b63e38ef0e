"""The sizes of an LSTM, GRU or RNN, and its inputs and outputs by their meaning."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import ceil_div
from coexec.engines.kernels.recurrent_cells import GATES
from coexec.graph.graph import Operator, Tensor

__all__ = ["Recurrence"]

_INPUTS = ("x", "w", "r", "bias", "lengths", "initial_h", "initial_c", "peepholes")
_OUTPUTS = ("y", "y_h", "y_c")


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The ``width`` units of a direction are neighbours in memory, ``block`` units in a vector."""

    times: int
    batch: int
    inputs: int
    hidden: int
    directions: int
    gates: int
    batch_first: bool
    backward: str
    """Expression: whether direction ``d`` runs from the last time to the first."""
    names: Mapping[str, str]
    """Names of the inputs and outputs that exist, by their meaning."""
    block: int
    """Units in a vector; 0: units are computed one by one."""

    @property
    def units(self) -> int:
        """Number of vectors of units in a direction, or of units without vectors."""
        return ceil_div(self.hidden, self.block or 1)

    @property
    def width(self) -> int:
        """Scalars that the units of a direction take, the last vector's padding included."""
        return self.units * (self.block or 1)

    def padded(self, array: Array) -> Array:
        """[direction, rows of hidden units, ...] as [direction, rows, width, ...]; zeros behind."""
        rows = array.reshape(self.directions, -1, self.hidden, *array.shape[2:])
        full = np.zeros((*rows.shape[:2], self.width, *rows.shape[3:]), array.dtype)
        full[:, :, : self.hidden] = rows
        return full

    @staticmethod
    def of(op: Operator, tensors: Mapping[str, Tensor], block: int) -> "Recurrence":
        names = {role: name for role, name in zip(_INPUTS, op.inputs, strict=False) if name}
        names |= {
            role: name for role, name in zip(_OUTPUTS, op.outputs, strict=False) if name in tensors
        }
        batch_first = bool(op.int("layout", 0))
        first, second, inputs = tensors[names["x"]].shape
        times, batch = (second, first) if batch_first else (first, second)
        directions, _, hidden = tensors[names["r"]].shape
        backward = {"reverse": "1", "bidirectional": "d"}.get(op.text("direction", "forward"), "0")
        return Recurrence(
            times,
            batch,
            inputs,
            hidden,
            directions,
            GATES[op.op_type],
            batch_first,
            backward,
            names,
            block,
        )
