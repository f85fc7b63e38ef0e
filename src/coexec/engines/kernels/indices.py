"""Checks of indices that are computed or fed to the model.

ONNX Runtime raises an error if an index is out of range. A kernel stores such an index in a
separate number, which the host reads after the run, and continues with an index in range. So a
check costs two comparisons for each index. Constant indices are checked while kernels are
generated.
"""

from coexec.arrays import Array
from coexec.engines.kernels.base import Context, Source
from coexec.engines.kernels.index_check import IndexCheck
from coexec.graph.graph import Operator

__all__ = ["Indices"]


class Indices:
    """The input of an operator that selects elements.

    The text may use ``GET_indices`` and ``AT_indices``.
    """

    def __init__(
        self, source: Source, context: Context, op: Operator, number: int, argument: str = "indices"
    ) -> None:
        """``number``: position of the input, which is declared already as ``argument``."""
        self._source, self._context, self._op = source, context, op
        self._tensor = op.inputs[number]
        self._argument = argument
        self._checks = 0

    def position(self, name: str, where: str, axis: int, size: int) -> str:
        """Statements that declare ``name``, the position along an axis of ``size`` elements.

        Negative indices count from the end. An index out of range is stored, and limited to the
        range.
        """
        index = f"given_{name}"
        check = self.check(index, -size, size - 1, f"axis {axis} has {size} elements")
        return (
            f"const long {index} = GET_{self._argument}({where}); {check}"
            f"const int {name} = clamp({index} < 0 ? {index} + {size} : {index}, 0L, {size - 1}L);"
        )

    def check(self, value: str, low: int, high: int, size: str) -> str:
        """The statement that stores the integer ``value``, an element, if it is out of range."""
        array = self._context.constant(self._tensor)
        if array is not None and _all_within(array, low, high):
            return ""
        op = self._op
        check = IndexCheck(op.op_type, op.outputs[0] or op.op_type, self._tensor, low, high, size)
        parameter = f"{self._argument}_wrong{self._checks}"
        self._checks += 1
        self._source.write(parameter, self._context.noted(check))
        return f"if ({value} < {low} || {value} > {high}) PUT_{parameter}(0, {value}); "


def _all_within(array: Array, low: int, high: int) -> bool:
    return not array.size or bool(low <= array.min() and array.max() <= high)
