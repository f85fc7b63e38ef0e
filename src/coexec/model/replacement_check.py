"""Checks that a replacement computes the same as the nodes that it replaces. ONNX Runtime runs
both, apart from their model.

The made-up inputs then reach the operators directly: no node in front of them can refuse the
inputs, and no node behind them can hide a difference. Convolutions and pools get few windows and
all their weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coexec.arrays import Array, is_float
from coexec.model.difference import HALF_TOLERANCE, TOLERANCE
from coexec.model.reference_session import plain_session
from coexec.model.replacing import Replacement, inputs_of, own_weight
from coexec.model.values import run_session

__all__ = ["compute_the_same", "differing_row", "hostile"]

_AT_ONCE_BYTES = 256 << 20
"""Bytes of weights of the replacements that are compared in one session."""


def compute_the_same(replacements: Sequence[Replacement], opsets: Mapping[str, int]) -> list[bool]:
    """For each replacement, whether its results agree with those of the nodes that it covers.

    False also if that cannot be checked, because ONNX Runtime does not run one of the two.
    """
    verdicts: list[bool] = []
    for group in _groups(replacements):
        verdicts += _compared(group, opsets)
    return verdicts


def _groups(replacements: Sequence[Replacement]) -> Iterable[list[Replacement]]:
    group: list[Replacement] = []
    total_bytes = 0
    for replacement in replacements:
        weights = (t for v in inputs_of(replacement.covers) if (t := _tensor(v)) is not None)
        size_bytes = sum(tensor.nbytes for tensor in weights)
        if group and total_bytes + size_bytes > _AT_ONCE_BYTES:
            yield group
            group, total_bytes = [], 0
        group.append(replacement)
        total_bytes += size_bytes
    if group:
        yield group


def _compared(group: Sequence[Replacement], opsets: Mapping[str, int]) -> list[bool]:
    try:
        results = [_results(group, opsets, after=after) for after in (False, True)]
    except Exception:  # one of them does not run: compare in smaller groups
        if len(group) == 1:
            return [False]
        half = len(group) // 2
        return [*_compared(group[:half], opsets), *_compared(group[half:], opsets)]
    return [differing_row(b, a) is None for a, b in zip(*results, strict=True)]


def _results(
    group: Sequence[Replacement], opsets: Mapping[str, int], *, after: bool
) -> list[Array]:
    """Results of the covered nodes, or of their replacements if ``after``."""
    inputs: list[ir.Value] = []
    outputs: list[ir.Value] = []
    weights: list[ir.Value] = []
    nodes: list[ir.Node] = []
    feeds: dict[str, Array] = {}
    for number, replacement in enumerate(group):
        copies: dict[ir.Value, ir.Value] = {}
        for place, value in enumerate(inputs_of(replacement.covers)):
            name, tensor = f"{number}.{place}", _tensor(value)
            if tensor is not None:
                copies[value] = own_weight(name, tensor)
                weights.append(copies[value])
                continue
            shape = _shape(replacement, value)
            feeds[name] = hostile(shape, _kind(value))
            copies[value] = ir.Value(name=name, type=value.type, shape=ir.Shape(shape))
            inputs.append(copies[value])
        if after:
            added = [_node(replacement, number, copies, weights)]
        else:
            added = [_copy(node, copies) for node in replacement.covers]
        nodes += added
        outputs.append(added[-1].outputs[0])
        outputs[-1].name = f"result.{number}"
        outputs[-1].type = replacement.covers[-1].outputs[0].type
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=nodes,
        initializers=weights,
        name="compared",
        opset_imports=dict(opsets),
    )
    session = plain_session(ir.Model(graph, ir_version=10), threads=1)
    results: list[Array] = run_session(session, [value.name or "" for value in outputs], feeds)
    return results


def _copy(node: ir.Node, copies: dict[ir.Value, ir.Value]) -> ir.Node:
    inputs = [None if value is None else copies[value] for value in node.inputs]
    made = ir.Node(
        node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs)
    )
    copies.update(zip(node.outputs, made.outputs, strict=True))
    return made


def _node(
    new: Replacement, number: int, copies: Mapping[ir.Value, ir.Value], weights: list[ir.Value]
) -> ir.Node:
    inputs: list[ir.Value | None] = []
    for place, value in enumerate(new.inputs):
        if not isinstance(value, np.ndarray):
            inputs.append(None if value is None else copies[value])
            continue
        weights.append(own_weight(f"{number}.new.{place}", ir.tensor(value)))
        inputs.append(weights[-1])
    return ir.Node("", new.op_type, inputs, new.attributes.values())


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    return None if value.is_graph_input() else ir.convenience.get_const_tensor(value)


def _shape(replacement: Replacement, value: ir.Value) -> tuple[int, ...]:
    sample = replacement.samples.get(value.name or "")
    if sample is None:
        raise ValueError(f"no shape is known to compare {value.name!r} with")
    return (len(_ROWS), *sample)


def _kind(value: ir.Value) -> np.dtype[np.floating]:
    if value.dtype is None or not is_float(value.dtype.numpy()):
        raise ValueError(f"{value.name!r} has no fractions")
    return value.dtype.numpy()


_ROWS = (
    "ordinary",
    "zero",
    "negative",
    "large",
    "small",
    "denormal",
    "NaN inside",
    "NaN first",
    "NaN last",
    "infinity last",
    "-infinity inside",
    "-infinity",
)


def hostile(shape: Sequence[int], kind: np.dtype[np.floating], seed: int = 0) -> Array:
    """Numbers of 12 kinds along the first axis, in the order of `_ROWS`.

    The large ones do not overflow when they are multiplied by ordinary numbers and summed up:
    otherwise two orders of summation could differ.
    """
    import ml_dtypes

    numbers = np.random.default_rng(seed).standard_normal((len(_ROWS), *shape[1:]))
    limits: Any = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    numbers[1] = 0
    numbers[2] = -np.abs(numbers[2])
    numbers[3] *= float(limits.max) ** 0.5
    numbers[4] *= float(limits.tiny) ** 0.5
    numbers[5] *= float(limits.tiny) / 8
    flat = numbers.reshape(len(_ROWS), -1)
    if flat.shape[1]:
        inside = flat.shape[1] // 2
        flat[6, inside] = flat[7, 0] = flat[8, -1] = np.nan
        flat[9, -1], flat[10, inside] = np.inf, -np.inf
        flat[11] = -np.inf
    with np.errstate(over="ignore"):
        return flat.reshape(numbers.shape).astype(kind)


def differing_row(actual: Array, expected: Array) -> int | None:
    """Index of the first entry of the first axis that differs beyond the tolerance; None if none
    does.

    The differences of an entry are relative to its largest finite number. NaN and each infinity
    have to lie in the same places.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return 0
    if not is_float(expected.dtype):
        return None if np.array_equal(actual, expected) else 0
    allowed = TOLERANCE if expected.dtype.itemsize >= 4 else HALF_TOLERANCE
    for row, (a, b) in enumerate(zip(actual, expected, strict=True)):
        one, other = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(other)
        if not np.array_equal(
            np.where(finite, 0, other), np.where(np.isfinite(one), 0, one), equal_nan=True
        ):
            return row
        scale = float(np.abs(other[finite]).max(initial=0.0))
        if (np.abs(one[finite] - other[finite]) > allowed * scale).any():
            return row
    return None
