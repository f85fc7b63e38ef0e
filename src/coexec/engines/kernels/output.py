"""The result of a kernel with the epilogue of element-wise operators behind it."""

from collections.abc import Sequence

from coexec.engines.kernels.base import CTYPES, Context, Node, Source
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.positions import at

__all__ = ["Output"]


class Output:
    """Declares the result of a node as ``y``, and the operands of its epilogue."""

    def __init__(self, source: Source, context: Context, node: Node, scalar: bool = False) -> None:
        """``scalar``: the kernel computes one scalar at a time, in any layout."""
        self._epilogue = Epilogue(source, context, node, node.epilogue, scalar)
        self._head = node.operator.outputs[0]
        self._ctype = CTYPES[context.tensors[self._head].dtype]
        self.has_epilogue = bool(node.epilogue)
        self.value = self._epilogue.out
        self.vector = self._epilogue.vector
        """Whether `store` takes vectors of channels."""
        if self.vector:
            self._ctype = context.arch.vector
        source.write("y", self.value)

    def store(self, value: str, coordinates: Sequence[str], tag: str = "") -> list[str]:
        """Lines that apply the epilogue to ``value`` and store the result.

        Args:
            value: an expression of a vector at (n, slice, y, x), or of a scalar.
            coordinates: all coordinates of the target.
            tag: makes names of variables distinct where this is called several times.
        """
        variable = f"made{tag}"
        lines, result = self._epilogue.apply(variable, self._head, coordinates, tag)
        lines.insert(0, f"const {self._ctype} {variable} = {value};")
        if self.vector:
            return [*lines, f"STORE_y(VEC_y({', '.join(coordinates)}), {result});"]
        ctype = CTYPES[self.value.dtype]
        return [*lines, f"PUT_y({at('y', coordinates)}, ({ctype})({result}));"]
