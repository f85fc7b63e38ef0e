"""Einsum: as a matrix product for two tensors on CPU cores, else scalar by scalar.

Labels of both tensors and the result are the batch. Labels that the result lacks are summed. The
others are rows and columns. Kernels transpose the tensors to this order first, and the result to
its own order at the end, where the order differs.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels import gemm_cpu, transpose
from coexec.engines.kernels.base import (
    CTYPES,
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    Value,
    in_half,
)
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.positions import at, split
from coexec.engines.kernels.product import Product
from coexec.engines.kernels.unsupported import FLOATS
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS", "sums"]


@dataclass(frozen=True, slots=True)
class _Equation:
    """Labels of the axes of each input and of the result. The labels of "..." are "0", "1", ..."""

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
        dots = max((r for r, term in zip(ranks, terms, strict=True) if "..." in term), default=0)
        inputs = tuple(_labels(term, rank, dots) for term, rank in zip(terms, ranks, strict=True))
        if not arrow:
            counts = Counter(label for labels in inputs for label in labels)
            once = sorted(label for label, n in counts.items() if n == 1 and label.isalpha())
            right = ("..." if "..." in left else "") + "".join(once)
        sizes: dict[str, int] = {}
        for labels, shape in zip(inputs, shapes, strict=True):
            for label, size in zip(labels, shape, strict=True):
                sizes[label] = max(size, sizes.get(label, 1))
        return _Equation(inputs, _labels(right, dots, dots), sizes)


def _labels(term: str, rank: int, more: int) -> tuple[str, ...]:
    """Labels of a term. In it, "..." stands for ``rank`` axes, the last ones of ``more``."""
    before, dots, behind = term.partition("...")
    unnamed = [str(i) for i in range(more - rank, more)] if dots else []
    return (*before, *unnamed, *behind)


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    equation, shapes = _equation(node.operator, context.tensors)
    if context.arch.family == "cpu":
        matrices = _matrices(node.operator, context.tensors)
        if matrices is not None:
            return _product(node, context, equation, matrices)
    return [_scalars(node, context, equation, shapes)]


def sums(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    """Number of terms that a CPU core adds one by one for ``op``; 0 for a matrix product."""
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
    """The matrix product that ``op`` is; None if it is none of floats."""
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
        """The matrix product of an equation.

        None if axes are repeated, broadcast, or summed in one tensor only, and if rows or columns
        are so few that other work takes most of the time.
        """
        if len(shapes) != 2:
            return None
        for labels, shape in zip(equation.inputs, shapes, strict=True):
            sizes = tuple(equation.sizes[label] for label in labels)
            if len(set(labels)) < len(labels) or sizes != tuple(shape):
                return None
        left, right = equation.inputs
        out = equation.output
        both = [label for label in left if label in right]
        groups = _Matrices(
            tuple(label for label in out if label in both),
            tuple(label for label in out if label not in right),
            tuple(label for label in both if label not in out),
            tuple(label for label in out if label not in left),
        )
        summed = {label for label in (*left, *right) if label not in out}
        elements = [groups.size(labels, equation) for labels in (groups.rows, groups.columns)]
        small = min(elements) < _LEAST_EDGE
        return None if small or summed != set(groups.inner) or not groups.inner else groups

    def size(self, labels: Sequence[str], equation: _Equation) -> int:
        return math.prod(equation.sizes[label] for label in labels)


_LEAST_EDGE = 4
"""Least rows and columns for which a matrix product pays off."""


def _product(
    node: Node, context: Context, equation: _Equation, matrices: _Matrices
) -> list[KernelLaunch]:
    op, m = node.operator, matrices
    kernels: list[KernelLaunch] = []
    batch, rows, inner, columns = (
        m.size(labels, equation) for labels in (m.batch, m.rows, m.inner, m.columns)
    )
    orders = (*m.batch, *m.rows, *m.inner), (*m.batch, *m.inner, *m.columns)
    shapes = (batch, rows, inner), (batch, inner, columns)
    sides: list[_Side] = []
    for name, labels, axes, shape in zip(op.inputs, equation.inputs, orders, shapes, strict=True):
        again = any(side[0] == name for side in sides)
        sides.append(_ordered(context, name, labels, axes, shape, kernels, again))
    matrix_axes = (*m.batch, *m.rows, *m.columns)
    y = context.value(op.outputs[0])
    direct = matrix_axes == equation.output and not y.block and not node.epilogue
    target = y if direct else _row_major(context, [equation.sizes[label] for label in matrix_axes])
    inside = context
    for side in (*sides, (target.name, (batch, rows, columns), None)):
        inside = _viewed(inside, *side)
    names = tuple(side[0] for side in sides)
    product = Operator("MatMul", names, (target.name,), {}, {}, version=op.version)
    kernels += gemm_cpu.launches(Node(product), inside, Product((batch,), rows, inner, columns))
    if not direct:
        order = tuple(matrix_axes.index(label) for label in equation.output)
        turned = Operator("Transpose", (target.name,), (op.outputs[0],), {"perm": order}, {})
        outer = _viewed(context, target.name, target.shape, None)
        kernels += transpose.launches(Node(turned, node.epilogue), outer)
    return kernels


_Side = tuple[str, tuple[int, ...], Array | None]
"""A tensor's name, its shape as a batch of matrices, and its values if it is constant."""


def _ordered(
    context: Context,
    name: str,
    labels: Sequence[str],
    target_labels: Sequence[str],
    shape: tuple[int, ...],
    kernels: list[KernelLaunch],
    again: bool,
) -> _Side:
    """A side of the product with its axes as ``target_labels``.

    Its Transpose is added to ``kernels``.
    ``again``: the tensor is also the other side, so this side needs another name.
    """
    order = tuple(labels.index(label) for label in target_labels)
    array = context.constant(name)
    if array is not None:
        ordered = np.ascontiguousarray(array.transpose(order)).reshape(shape)
        return f"{name}, as {' '.join(target_labels)}", shape, ordered
    value = context.value(name)
    if order == tuple(range(len(order))) and not value.block and not again:
        return name, shape, None
    turned = _row_major(context, [value.shape[axis] for axis in order])
    operator = Operator("Transpose", (name,), (turned.name,), {"perm": order}, {})
    inside = _viewed(context, turned.name, turned.shape, None)
    kernels += transpose.launches(Node(operator), inside)
    return turned.name, shape, None


def _row_major(context: Context, shape: Sequence[int]) -> Value:
    """Memory for a tensor between two kernels."""
    return context.temporary(shape, half=in_half(context.arch, "float32", math.prod(shape)))


def _viewed(context: Context, name: str, shape: tuple[int, ...], array: Array | None) -> Context:
    """The context in which ``name`` is row-major with this shape."""
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
        source.read(f"x{number}", context.operand(name))
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
    source.lines(lines)
    return source.finish((math.prod(output.value.shape),))


# ONNX Runtime limits some sums of integers to the type's range, and lets others overflow.
KERNELS = {"Einsum": Kernel(launches, FLOATS)}
