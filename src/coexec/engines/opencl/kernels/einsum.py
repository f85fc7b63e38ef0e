"""Einsum: a work item sums the products of one scalar of the result."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coexec.engines.opencl.kernels.base import CTYPES, Context, KernelLaunch, Node, Source
from coexec.engines.opencl.kernels.operands import declare
from coexec.engines.opencl.kernels.output import Output
from coexec.engines.opencl.kernels.positions import at, split
from coexec.engines.opencl.kernels.reasons import NUMBERS, wrong_type
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "why_not"]


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
    return wrong_type(op, tensors, NUMBERS)


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    shapes = [context.tensors[n].shape for n in op.inputs]
    equation = _Equation.of(op.text("equation", ""), shapes)
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
    return [source.finish((math.prod(output.value.shape),))]
