"""Einsum: of two tensors as a matrix product where one thread owns a core, else scalar by scalar.

Labels of both tensors and the result tell the matrices of a batch apart, those that the result
lacks are summed, and the others are rows and columns. Axes are brought into that order first, and
the result into its own, where they are in another one.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coexec.arrays import Array
from coexec.engines.opencl.kernels import gemm_cpu, transpose
from coexec.engines.opencl.kernels.base import (
    CTYPES,
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    in_half,
)
from coexec.engines.opencl.kernels.operands import declare
from coexec.engines.opencl.kernels.output import Output
from coexec.engines.opencl.kernels.positions import at, split
from coexec.engines.opencl.kernels.product import Product
from coexec.engines.opencl.kernels.reasons import wrong_type
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "sums", "why_not"]


@dataclass(frozen=True, slots=True)
class _Equation:
    """Labels of the axes of each input and of the result; "..." are the labels "0", "1", ..."""

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    sizes: Mapping[str, int]

    @staticmethod
    def of(text: str, shapes: Sequence[tuple[int, ...]]) -> "_Equation":
        left, arrow, right = text.replace(" ", "").partition("->")
        terms = left.split(",")
        ranks = [
            len(shape) - len(term.replace("...", ""))
            for term, shape in zip(terms, shapes, strict=True)
        ]
        more = max((r for r, term in zip(ranks, terms, strict=True) if "..." in term), default=0)
        inputs = tuple(_labels(term, rank, more) for term, rank in zip(terms, ranks, strict=True))
        if not arrow:
            counts = Counter(label for labels in inputs for label in labels)
            once = sorted(label for label, n in counts.items() if n == 1 and label.isalpha())
            right = ("..." if "..." in left else "") + "".join(once)
        sizes: dict[str, int] = {}
        for labels, shape in zip(inputs, shapes, strict=True):
            for label, size in zip(labels, shape, strict=True):
                sizes[label] = max(size, sizes.get(label, 1))
        return _Equation(inputs, _labels(right, more, more), sizes)


def _labels(term: str, rank: int, more: int) -> tuple[str, ...]:
    """``rank`` axes stand for "...", the last of ``more``."""
    before, dots, behind = term.partition("...")
    unnamed = [str(i) for i in range(more - rank, more)] if dots else []
    return (*before, *unnamed, *behind)


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    # ONNX Runtime limits some sums of integers to the type's range, and lets others overflow.
    return wrong_type(op, tensors, {"float32", "float64"})


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    equation, shapes = _equation(node.operator, context.tensors)
    if context.arch.family == "cpu":
        matrices = _matrices(node.operator, context.tensors)
        if matrices is not None:
            return _product(node, context, equation, matrices)
    return [_scalars(node, context, equation, shapes)]


def sums(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    """Terms that are added up one by one, where a core computes ``op``; 0 in a matrix product."""
    equation, _ = _equation(op, tensors)
    if set(equation.sizes) == set(equation.output) or _matrices(op, tensors) is not None:
        return 0
    return math.prod(equation.sizes.values())


def _equation(
    op: Operator, tensors: Mapping[str, Tensor]
) -> tuple[_Equation, list[tuple[int, ...]]]:
    shapes = [tensors[name].shape for name in op.inputs]
    return _Equation.of(op.text("equation", ""), shapes), shapes


def _matrices(op: Operator, tensors: Mapping[str, Tensor]) -> "_Matrices | None":
    """What is multiplied, if ``op`` is a product of matrices of floats."""
    if any(tensors[name].dtype != "float32" for name in op.inputs):
        return None
    return _Matrices.of(*_equation(op, tensors))


@dataclass(frozen=True, slots=True)
class _Matrices:
    """The labels of an equation of two tensors as axes of a matrix product."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    inner: tuple[str, ...]
    columns: tuple[str, ...]

    @staticmethod
    def of(equation: _Equation, shapes: Sequence[tuple[int, ...]]) -> "_Matrices | None":
        """None where axes are repeated, broadcast or summed in one tensor alone, and where most of
        the work is no matrix product."""
        if len(shapes) != 2:
            return None
        for labels, shape in zip(equation.inputs, shapes, strict=True):
            sizes = tuple(equation.sizes[label] for label in labels)
            if len(set(labels)) < len(labels) or sizes != tuple(shape):
                return None
        left, right = equation.inputs
        out = equation.output
        both = [label for label in left if label in right]
        found = _Matrices(
            tuple(label for label in out if label in both),
            tuple(label for label in out if label not in right),
            tuple(label for label in both if label not in out),
            tuple(label for label in out if label not in left),
        )
        summed = {label for label in (*left, *right) if label not in out}
        elements = [found.size(labels, equation) for labels in (found.rows, found.columns)]
        small = min(elements) < _LEAST_EDGE
        return None if small or summed != set(found.inner) or not found.inner else found

    def size(self, labels: Sequence[str], equation: _Equation) -> int:
        return math.prod(equation.sizes[label] for label in labels)


_LEAST_EDGE = 4
"""Rows and columns of a matrix product that is worth it."""


def _product(
    node: Node, context: Context, equation: _Equation, matrices: _Matrices
) -> list[KernelLaunch]:
    op, m = node.operator, matrices
    found: list[KernelLaunch] = []
    batch, rows, inner, columns = (
        m.size(labels, equation) for labels in (m.batch, m.rows, m.inner, m.columns)
    )
    wanted = (*m.batch, *m.rows, *m.inner), (*m.batch, *m.inner, *m.columns)
    shapes = (batch, rows, inner), (batch, inner, columns)
    sides: list[_Side] = []
    for name, labels, axes, shape in zip(op.inputs, equation.inputs, wanted, shapes, strict=True):
        again = any(side[0] == name for side in sides)
        sides.append(_ordered(context, name, labels, axes, shape, found, again))
    made = (*m.batch, *m.rows, *m.columns)
    y = context.value(op.outputs[0])
    direct = made == equation.output and not y.block and not node.epilogue
    target = y if direct else _row_major(context, [equation.sizes[label] for label in made])
    inside = context
    for side in (*sides, (target.name, (batch, rows, columns), None)):
        inside = _viewed(inside, *side)
    names = tuple(side[0] for side in sides)
    product = Operator("MatMul", names, (target.name,), {}, {}, version=op.version)
    found += gemm_cpu.launches(Node(product), inside, Product((batch,), rows, inner, columns))
    if not direct:
        order = tuple(made.index(label) for label in equation.output)
        turned = Operator("Transpose", (target.name,), (op.outputs[0],), {"perm": order}, {})
        outer = _viewed(context, target.name, target.shape, None)
        found += transpose.launches(Node(turned, node.epilogue), outer)
    return found


_Side = tuple[str, tuple[int, ...], Array | None]
"""A tensor's name, its shape as a batch of matrices, and its values if it is constant."""


def _ordered(
    context: Context, name: str, labels: Sequence[str], wanted: Sequence[str],
    shape: tuple[int, ...], found: list[KernelLaunch], again: bool,
) -> _Side:  # fmt: skip
    """A side of the product with its axes as ``wanted``; what moves them is added to ``found``.

    ``again``: the tensor is the other side, too, so that this one needs another name.
    """
    order = tuple(labels.index(label) for label in wanted)
    array = context.constant(name)
    if array is not None:
        ordered = np.ascontiguousarray(array.transpose(order)).reshape(shape)
        return f"{name}, as {' '.join(wanted)}", shape, ordered
    given = context.value(name)
    if order == tuple(range(len(order))) and not given.block and not again:
        return name, shape, None
    turned = _row_major(context, [given.shape[axis] for axis in order])
    operator = Operator("Transpose", (name,), (turned.name,), {"perm": order}, {})
    inside = _viewed(context, turned.name, turned.shape, None)
    found += transpose.launches(Node(operator), inside)
    return turned.name, shape, None


def _row_major(context: Context, shape: Sequence[int]) -> Value:
    """Memory for a tensor between two kernels."""
    return context.temporary(shape, half=in_half(context.arch, "float32", math.prod(shape)))


def _viewed(context: Context, name: str, shape: tuple[int, ...], array: Array | None) -> Context:
    """The context in which ``name`` lies row-major with this shape."""
    tensors = {**context.tensors, name: Tensor(name, shape, "float32", array is not None)}
    constants = dict(context.constants) if array is None else {**context.constants, name: array}
    return replace(
        context, tensors=tensors, constants=constants, blocks={**context.blocks, name: 0}
    )


def _scalars(
    node: Node, context: Context, equation: _Equation, shapes: Sequence[tuple[int, ...]]
) -> KernelLaunch:
    op = node.operator
    source = Source("einsum", context.arch)
    factors = []
    for number, (name, labels) in enumerate(zip(op.inputs, equation.inputs, strict=True)):
        declare(source, context, f"x{number}", name)
        where = [
            f"l{label}" if size > 1 else "0"
            for label, size in zip(labels, shapes[number], strict=True)
        ]
        factors.append(f"GET_x{number}({at(f'x{number}', where)})")
    output = Output(source, context, node, scalar=True)
    ctype = CTYPES[context.tensors[op.inputs[0]].dtype]
    coordinates = split("index", [equation.sizes[label] for label in equation.output])
    summed = [label for label in equation.sizes if label not in equation.output]
    lines = [
        "const int index = get_global_id(0);",
        *(f"const int l{n} = {t};" for n, t in zip(equation.output, coordinates, strict=True)),
        f"{ctype} all = 0;",
        *(f"for (int l{n} = 0; l{n} < {equation.sizes[n]}; l{n}++)" for n in summed),
        f"  all += {' * '.join(factors)};",
        *output.store("all", [f"l{label}" for label in equation.output]),
    ]
    source.lines("\n".join(f"  {line}" for line in lines))
    return source.finish((math.prod(output.value.shape),))
