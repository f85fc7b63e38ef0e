"""The sizes of a matrix product, and how its kernels read operands and store results."""

import math
from dataclasses import dataclass

from coexec.engines.kernels.base import Context, Node, Source, ceil_div, in_half, literal
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.touches import Touch, along
from coexec.engines.kernels.value import at, neighbours
from coexec.graph.graph import Operator


@dataclass(frozen=True, slots=True)
class Product:
    """batch x [m, k] times batch x [k, n], as Gemm or MatMul define it."""

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    across_a: bool = False
    across_b: bool = False
    """Whether the operand is transposed; ``across_a`` likewise."""
    alpha: float = 1.0
    beta: float = 1.0

    @staticmethod
    def of(op: Operator, context: Context) -> "Product":
        a, b = (context.tensors[n].shape for n in op.inputs[:2])
        alpha = math.prod(context.views[n].factor for n in op.inputs[:2] if n in context.views)
        if op.op_type == "Gemm":
            ta, tb = bool(op.int("transA", 0)), bool(op.int("transB", 0))
            m, k = reversed(a) if ta else a
            n = b[0] if tb else b[1]
            beta = op.number("beta", 1.0)
            alpha *= op.number("alpha", 1.0)
            return Product((), m, k, n, ta, tb, alpha, beta)
        out = context.tensors[op.outputs[0]].shape
        m = a[-2] if len(a) > 1 else 1
        n = b[-1] if len(b) > 1 else 1
        rank = len(out) - (len(a) > 1) - (len(b) > 1)
        return Product(tuple(out[:rank]), m, a[-1], n, alpha=alpha)


class Operands:
    """Declares the tensors of a product in a kernel, and gives expressions of their elements."""

    def __init__(self, source: Source, context: Context, node: Node, product: Product) -> None:
        """Declare the left side. The kernel itself declares the right side."""
        self._source = source
        self._context = context
        self._node = node
        self._product = product
        op = node.operator
        self._ranks = tuple(len(context.tensors[n].shape) for n in op.inputs[:2])
        biased = op.op_type == "Gemm" and len(op.inputs) > 2 and product.beta != 0
        self._bias = op.inputs[2] if biased else ""
        self._source.read("a", self._context.operand(op.inputs[0]))

    def declare_right(self) -> None:
        """Declare the right side without packing it."""
        self._source.read("b", self._context.operand(self._node.operator.inputs[1]))

    def declare_result(self, runs: bool = False) -> None:
        """Declare bias, epilogue and result; ``runs``: for vectors of neighbours, if possible."""
        output = self._node.output
        if output in self._context.views:
            runs = runs and self._context.has_vectors(output, -1)
        if self._bias:
            self._source.read("c", self._context.operand(self._bias))
        self._epilogue = Epilogue(
            self._source, self._context, self._node, self._node.epilogue, scalar=True, runs=runs
        )
        y = self._context.value(self._node.output)
        self._source.write("y", y)
        if self.runs:
            arch = self._context.arch
            aligned = arch.in_vectors(self._product.n)
            self._source.define(neighbours("y", y.half, arch.block, aligned))
            if self._bias and self._bias_shape[-1:] == (self._product.n,):
                half = in_half(self._context.arch, "float32", math.prod(self._bias_shape))
                self._source.define(neighbours("c", half, arch.block, aligned))

    @property
    def runs(self) -> bool:
        """Whether `store` takes vectors of neighbours in a row of the result."""
        return self._epilogue.run

    @property
    def _bias_shape(self) -> tuple[int, ...]:
        return self._context.tensors[self._bias].shape

    def batch_lines(self, index: str) -> list[str]:
        """Lines that split ``index``, the number of a product in the batch, into b0, b1, ..."""
        lines = [f"int batch_rest = {index};"]
        for axis in reversed(range(len(self._product.batch))):
            size = self._product.batch[axis]
            lines.append(f"const int b{axis} = batch_rest % {size}; batch_rest /= {size};")
        return lines

    def left(self, row: str, k: str) -> str:
        """Expression of an element of the left side."""
        return f"GET_a({self.left_at(row, k)})"

    def right(self, k: str, column: str) -> str:
        """Expression of an element of the right side, where it is not packed."""
        return f"GET_b({self.right_at(k, column)})"

    def left_at(self, row: str, k: str) -> str:
        """Position of an element of the left side."""
        return self._at("a", 0, (k,), (k, row) if self._product.across_a else (row, k))

    def right_at(self, k: str, column: str) -> str:
        """Position of an element of the right side, where it is not packed."""
        return self._at("b", 1, (k,), (column, k) if self._product.across_b else (k, column))

    def _at(self, name: str, side: int, vector: tuple[str, ...], matrix: tuple[str, ...]) -> str:
        """Position in an operand, which is a vector or has matrices."""
        inner = vector if self._ranks[side] == 1 else matrix
        return at(name, [*self._outer(self._node.operator.inputs[side], len(inner)), *inner])

    def right_matrix(self) -> str:
        """Number of the current matrix among the matrices of the right side."""
        shape = self._context.tensors[self._node.operator.inputs[1]].shape
        number = "0"
        for name, size in zip(self._outer(self._node.operator.inputs[1], 2), shape, strict=False):
            number = f"({number} * {size} + {name})"
        return number

    def _outer(self, tensor: str, inner: int) -> list[str]:
        """Coordinates of the current matrix in a tensor, on the axes in front of its own."""
        sizes = self._context.tensors[tensor].shape[:-inner]
        names = [f"b{i}" for i in range(len(self._product.batch))]
        pairs = zip(names[len(names) - len(sizes) :], sizes, strict=True)
        return [name if size > 1 else "0" for name, size in pairs]

    def touches(self, rows_axis: int, rows: int, batch_axis: int) -> dict[str, Touch]:
        """The parts of the left side and of the result that a box of the grid touches, whose items
        compute ``rows`` rows each of a product of the batch."""
        p, batch = self._product, math.prod(self._product.batch)
        planes = along(batch_axis, batch)
        strips = along(rows_axis, ceil_div(p.m, rows), rows)
        sides = {"a": (self._node.operator.inputs[0], p.k), "y": (self._node.output, p.n)}
        whole = {"a"} if p.across_a else set()
        return {
            name: Touch((1, batch, p.m, width), planes=planes, rows=strips)
            for name, (tensor, width) in sides.items()
            if name not in whole
            and tensor not in self._context.constants
            and not (value := self._context.value(tensor)).block
            and not value.axes
            and value.items == batch * p.m * width
        }

    def store(self, value: str, row: str, column: str, tag: str = "") -> list[str]:
        """Lines that finish an element of the result or a vector: scale, bias, epilogue, store."""
        product = self._product
        if product.alpha != 1.0:
            value = f"{literal(product.alpha)} * {value}"
        if self._bias:
            shape = self._bias_shape
            names = (row, column)[2 - len(shape) :]
            coordinates = [n if d > 1 else "0" for n, d in zip(names, shape, strict=True)]
            scale = "" if product.beta == 1.0 else f"{literal(product.beta)} * "
            near = self.runs and shape[-1:] == (product.n,)
            value += f" + {scale}{'NEAR' if near else 'GET'}_c(AT_c({', '.join(coordinates)}))"
        matrix = [
            *((row,) if self._ranks[0] > 1 else ()),
            *((column,) if self._ranks[1] > 1 else ()),
        ]
        position = [f"b{i}" for i in range(len(product.batch))] + matrix
        done = f"done{tag}"
        lines, result = self._epilogue.apply(done, self._node.operator.outputs[0], position, tag)
        ctype, put = (self._context.arch.vector, "PUTS") if self.runs else ("float", "PUT")
        return [
            f"const {ctype} {done} = {value};",
            *lines,
            f"{put}_y(AT_y({', '.join(position)}), {result});",
        ]
