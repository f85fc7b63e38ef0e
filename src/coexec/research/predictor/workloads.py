"""Workloads: the work of a task's kernels in countable units.

Of kernels that are not known, the computation and the moved bytes are counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coexec.engines.kernels.conv_winograd import beyond
from coexec.graph.graph import Operator, Tensor
from coexec.graph.rules import operator_macs

_SECOND_BYTES, _THIRD_BYTES = 2**20, 2**23
"""Rough bytes of a task's tensors that caches hold: the second-level cache belongs to one core;
other cores and weights occupy the rest of the third-level cache."""
_SUMS = frozenset({"Add", "Sum"})
_BOUNDED = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu"})
"""Activations that compare and multiply; the others call mathematical functions."""
_HEADS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "AveragePool", "LpPool", "MaxPool")


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of a task's kernel in countable units. Only the seconds of a unit are learned."""

    kind: str
    """Kind of kernel: "pointwise", "winograd". Each kind has unit times of its own."""
    terms: Mapping[str, float]
    """Number of units by name: blocks written out, bytes from a cache, launches. None is below 0;
    all workloads of a kind have the same names."""


def plain_workload(operators: Sequence[Operator], tensors: Mapping[str, Tensor]) -> Workload:
    """Multiply-accumulates, elements of windows and bytes; each type of operator is a kind."""
    heads = [op.op_type for op in operators if op.op_type in _HEADS]
    kind = heads[0] if heads else operators[0].op_type
    return Workload(
        kind,
        together(
            beside(operators, tensors),
            {
                "macs": float(sum(operator_macs(op, tensors) for op in operators)),
                "windows": float(sum(_windows(op, tensors) for op in operators)),
            },
        ),
    )


def together(*parts: Mapping[str, float]) -> dict[str, float]:
    """The terms of all parts.

    Raises:
        ValueError: two parts have a term of the same name, so one of them would not be counted.
    """
    terms: dict[str, float] = {}
    for part in parts:
        if twice := terms.keys() & part.keys():
            raise ValueError(f"terms of a workload are named twice: {', '.join(sorted(twice))}")
        terms |= part
    return terms


def _windows(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    """Number of elements of all windows of a pool."""
    kernel = op.ints("kernel_shape", ()) if op.op_type in ("AveragePool", "MaxPool") else ()
    return math.prod(tensors[op.outputs[0]].shape) * math.prod(kernel) if kernel else 0


def beside(
    operators: Sequence[Operator],
    tensors: Mapping[str, Tensor],
    weights_bytes: float | None = None,
) -> dict[str, float]:
    """Terms that every kernel has: a launch, bytes, and operators that are fused behind it.

    Args:
        weights_bytes: bytes of constants, as the kernel reads them; by default all constants.
    """
    head = next((i for i, op in enumerate(operators) if op.op_type in _HEADS), 0)
    first, behind = operators[head], operators[head + 1 :]
    constant = [tensors[n].size_bytes for n in first.inputs if n and tensors[n].constant]
    read = [tensors[n].size_bytes for n in first.inputs if n and not tensors[n].constant]
    output = tensors[operators[-1].outputs[0]].size_bytes
    kinds = [op.op_type for op in behind if op.op_type != "Relu"]
    added = sum(kind in _SUMS for kind in kinds)
    bounded = sum(kind in _BOUNDED for kind in kinds)
    return {
        "launch": 1.0,
        "weights": float(sum(constant)) if weights_bytes is None else weights_bytes,
        **_moved(sum(read), output),
        "added": float(added * output),
        "bounded": float(bounded * output),
        "curved": float((len(kinds) - added - bounded) * output),
    }


def _moved(read: int, written: int) -> dict[str, float]:
    """Bytes read and written, and those that do not stay in the second or third cache until the
    next task."""
    moved = read + written
    return {
        "read": float(read),
        "written": float(written),
        "far": moved * beyond(moved, _SECOND_BYTES),
        "farther": moved * beyond(moved, _THIRD_BYTES),
    }
