"""Element-wise operators that are applied to a value before it is stored.

An epilogue is fused with the heavy operator before it (convolution + activation + residual), or is
a separate kernel. Its other operands are loaded at the same position, with the broadcasting of
ONNX.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import (
    CTYPES,
    Context,
    Node,
    Source,
    Value,
    in_half,
    literal,
    row_major,
)
from coexec.engines.kernels.expressions import VECTOR_SAFE, Call, expression
from coexec.engines.kernels.value import at, neighbours
from coexec.graph.graph import Operator


def merged(out: Value, operands: Collection[Value]) -> Callable[[Value], Value]:
    """The function that merges axes of ``out`` and of the operands, which are broadcast to it.

    Neighbouring axes become one if each operand has the size of ``out``, or size 1, on all of them.
    Tensors in blocks keep their axes.
    """
    if any(value.block for value in (out, *operands)):
        return lambda value: value
    rank = len(out.shape)
    shapes = [(1,) * (rank - len(v.shape)) + v.shape for v in operands]
    groups: list[list[int]] = []
    kinds: list[tuple[bool, ...] | None] = []
    for axis, size in enumerate(out.shape):
        kind = tuple(shape[axis] == size for shape in shapes) if size > 1 else None
        if groups and (kind is None or kinds[-1] in (None, kind)):
            groups[-1].append(axis)
            kinds[-1] = kind or kinds[-1]
        else:
            groups.append([axis])
            kinds.append(kind)

    def view(value: Value) -> Value:
        shape = (1,) * (rank - len(value.shape)) + value.shape
        return replace(value, shape=tuple(math.prod(shape[a] for a in group) for group in groups))

    return view


class Epilogue:
    """The epilogue of a node, inside of the kernel that ``source`` builds.

    The constructor declares the operands as parameters; `apply` gives the lines for one position.
    """

    def __init__(
        self,
        source: Source,
        context: Context,
        node: Node,
        operators: Sequence[Operator],
        scalar: bool = False,
        merge: bool = False,
        runs: bool = False,
    ) -> None:
        """``operators`` may include the head itself, if that is element-wise.

        With ``scalar``, the head computes one scalar at a time, in any layout. With ``runs``, it
        can also compute vectors of neighbours along the last axis. With ``merge``, axes of the
        output, and of positions in it, may be merged; its memory stays the same.
        """
        self._context = context
        self._operators = operators
        self.out = context.value(node.output)
        safe = all(op.op_type in VECTOR_SAFE for op in operators)
        self.vector = bool(self.out.block) and safe and not scalar
        """Whether positions are those of vectors of channels: (n, slice, y, x)."""
        inside = {name for op in operators for name in op.outputs}
        inside.update(node.operator.outputs)
        read = (name for op in operators for name in _read(op) if name and name not in inside)
        values = {name: operand_value(context, name) for name in read}
        if merge:
            view = merged(self.out, values.values())
            self.out = view(self.out)
            values = {name: view(value) for name, value in values.items()}
        self.run = runs and safe and _along_rows(context, self.out, values.values(), operators)
        """Whether a position is the first element of a vector of neighbours in a row."""
        self._operands = {
            name: Operand(
                source, context, value, f"e{i}", self.out if self.vector else None, self.run
            )
            for i, (name, value) in enumerate(values.items())
        }

    def apply(
        self, start: str, start_name: str, position: Sequence[str], tag: str = ""
    ) -> tuple[list[str], str]:
        """Lines of OpenCL C, and the name of the variable that holds the result.

        Args:
            start: an expression of the head's value at this position.
            start_name: name of the head's output; "" if the epilogue has no head.
            position: (n, slice, y, x) of a vector, else all coordinates: see ``vector``, ``run``.
            tag: makes names of variables distinct where the epilogue is applied several times.
        """
        lines: list[str] = []
        texts = {start_name: start if start.isidentifier() else f"({start})"}
        for number, op in enumerate(self._operators):
            for name in _read(op):
                if name and name not in texts:
                    operand = self._operands[name]
                    texts[name] = f"v{operand.argument}{tag}"
                    lines.append(f"{operand.ctype()} {texts[name]} = {operand.at(position)};")
            call = self._call(op, texts)
            vectors = self.vector or self.run
            ctype = self._context.arch.vector if vectors else CTYPES[call.dtype]
            result = f"t{number}{tag}"
            lines.append(f"{ctype} {result} = {self._power(op, texts) or expression(call)};")
            texts[op.outputs[0]] = result
        return lines, texts[self._operators[-1].outputs[0]] if self._operators else start

    def _call(self, op: Operator, texts: Mapping[str, str]) -> Call:
        tensors, read = self._context.tensors, _read(op)
        dtypes = [tensors[name].dtype if name else "" for name in read]
        if self.vector or self.run:  # vectors have floats, even if other types were loaded
            dtypes = ["float32"] * len(read)
        names = [texts[name] if name else "" for name in read]
        return Call(op, names, dtypes, tensors[op.outputs[0]].dtype)

    def _power(self, op: Operator, texts: Mapping[str, str]) -> str:
        """A square or cube as a product, as in ONNX Runtime, in a hundredth of the time of a power.
        "" for other operators."""
        array = self._context.constant(op.inputs[1]) if op.op_type == "Pow" else None
        if array is None or array.size > 1:
            return ""
        exponent, floats = array.item(), self._context.tensors[op.inputs[0]].dtype == "float32"
        return (
            " * ".join([texts[op.inputs[0]]] * int(exponent))
            if (floats and exponent in (2, 3))
            else ""
        )


def _read(op: Operator) -> tuple[str, ...]:
    """The operands that are read at run time; others were used when the kernel was generated."""
    return op.inputs[:1] if op.op_type == "Dropout" else op.inputs


def _along_rows(
    context: Context, out: Value, operands: Iterable[Value], operators: Sequence[Operator]
) -> bool:
    """Whether vectors of neighbours in a row of ``out`` can be made of vectors of the operands."""
    if context.arch.block == 1 or out.block or not out.shape or out.shape[-1] < context.arch.block:
        return False
    dtypes = (context.tensors[op.outputs[0]].dtype for op in operators)
    if any(dtype != "float32" for dtype in (out.dtype, *dtypes)):
        return False
    return all(
        v.dtype == "float32"
        and (math.prod(v.shape[-1:]) == 1 or not v.block)
        and (not v.axes or context.has_vectors(v.name, -1))
        for v in operands
    )


def operand_value(context: Context, name: str) -> Value:
    """An operand with its layout. Constants are row-major, as in ONNX."""
    if context.constant(name) is None:
        return context.value(name)
    tensor = context.tensors[name]
    return Value(name, tensor.shape, tensor.dtype)


class Operand:
    """A tensor or constant that is read where an output is computed, broadcast to its shape."""

    def __init__(
        self,
        source: Source,
        context: Context,
        value: Value,
        argument: str,
        out: Value | None,
        run: bool = False,
    ) -> None:
        """
        Args:
            value: as `operand_value` returns it, perhaps with fewer axes.
            out: the output, if vectors of its channels are computed; else None.
            run: vectors of neighbours in a row are computed.
        """
        self.argument = argument
        self._arch = context.arch
        self._out = out
        self._run = run
        self._dtype = value.dtype
        array = context.constant(value.name)
        self._literal: str | None = None
        self._value: Value | None = None
        if array is None:
            self._value = value
            source.read(argument, value, at_result=True)
        elif array.size == 1:
            self._literal = literal(array.reshape(-1)[0], value.dtype)
        elif out is not None and _per_channel(value.shape, out):
            source.constant(argument, _packed(array, out))
        else:
            self._value = value  # perhaps with fewer axes than the array
            source.constant(argument, array, vector=1)
            source.define(row_major(argument, value.shape))
        if run and self._value is not None and math.prod(value.shape[-1:]) > 1:
            half = value.half if array is None else (in_half(context.arch, value.dtype, array.size))
            aligned = context.arch.in_vectors(value.shape[-1])
            source.define(neighbours(argument, half, context.arch.block, aligned))

    def ctype(self) -> str:
        scalar = self._out is None and not self._run
        return CTYPES[self._dtype] if scalar else self._arch.vector

    def at(self, position: Sequence[str]) -> str:
        """The expression for one position of the output."""
        name, vector = self.argument, self._arch.vector
        if self._literal is not None:
            scalar = self._out is None and not self._run
            return self._literal if scalar else f"({vector})({self._literal})"
        if self._value is None:
            return f"LOAD_{name}({position[1]})"
        if self._run:
            alike = math.prod(self._value.shape[-1:]) > 1
            where = self._element(position)
            return f"NEAR_{name}({where})" if alike else f"({vector})(GET_{name}({where}))"
        if self._out is None:
            return f"GET_{name}({self._element(position)})"
        n, s, y, x = position
        shape = (1,) * (4 - len(self._value.shape)) + self._value.shape
        n, y, x = (p if shape[axis] > 1 else "0" for axis, p in ((0, n), (2, y), (3, x)))
        if shape[1] == 1:
            return f"({vector})(GET_{name}({self._element((n, '0', y, x))}))"
        if self._value.block:
            return f"LOAD_{name}(VEC_{name}({n}, {s}, {y}, {x}))"
        lanes = []
        for lane in range(self._arch.block):
            channel = f"min(({s}) * {self._arch.block} + {lane}, {self._out.shape[1] - 1})"
            lanes.append(f"GET_{name}({self._element((n, channel, y, x))})")
        return f"({vector})({', '.join(lanes)})"

    def _element(self, position: Sequence[str]) -> str:
        assert self._value is not None
        shape = self._value.shape
        positions = position[len(position) - len(shape) :] if shape else ()
        coordinates = [p if d > 1 else "0" for p, d in zip(positions, shape, strict=True)]
        return f"AT_{self.argument}({', '.join(coordinates)})"


def _per_channel(shape: Sequence[int], out: Value) -> bool:
    full = (1,) * (4 - len(shape)) + tuple(shape)
    return full[1] == math.prod(full) == out.shape[1]


def _packed(array: Array, out: Value) -> Array:
    packed = np.zeros(out.slices * out.block, np.float32)
    packed[: array.size] = array.reshape(-1)
    return packed


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
