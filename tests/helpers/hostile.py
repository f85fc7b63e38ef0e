"""Values that operators rarely meet: NaN, infinities, -0, denormals, extreme integers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, helper
from onnx_models import direct, run, tensor

from coexec.engines.base import OpenEngine
from coexec.frontend.model import Model

Array = np.ndarray[Any, Any]

FLOATS = np.array(
    [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1.4e-45, 1.2e-38, 3.4e38, -3.4e38, 1.0,
     -1.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 88.7, 89.5, -88.0, -104.0, 1e10, -1e10, 3.0, -3.0, 0.1,
     -0.1, 6.5, 20.0, -20.0], np.float32,
)  # fmt: skip


@dataclass(frozen=True)
class Hostile:
    """One node. Arrays that are no constants are fed."""

    op_type: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    """Numbers of the inputs that are constants of the model."""
    outputs: int = 1

    @property
    def title(self) -> str:
        shapes = " ".join("-" if a is None else f"{a.dtype.name}{list(a.shape)}" for a in self.inputs)
        return f"{self.op_type} {shapes} {dict(self.attributes) or ''}"


def integers(dtype: str) -> Array:
    """The extreme ones, those next to them, and small ones."""
    limits = np.iinfo(dtype)
    small = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 100]
    signed = [-v for v in small] if limits.min < 0 else []
    values = [limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2, *small, *signed]
    return np.array([v for v in values if limits.min <= v <= limits.max], dtype)


def laid_out(values: Array, shape: Sequence[int], seed: int = 0) -> Array:
    """``values`` again and again, in any order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.resize(values, int(np.prod(shape)))).reshape(shape)


def one_model(cases: Sequence[Hostile], opset: int) -> tuple[Model, dict[str, Array]]:
    """A model with a node for each case, and its feeds; equal arrays have one input."""
    nodes: list[NodeProto] = []
    feeds: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    names: dict[int, str] = {}
    for number, case in enumerate(cases):
        read = []
        for i, array in enumerate(case.inputs):
            if array is None:
                read.append("")
                continue
            constant = i in case.constants
            key = id(array) * 2 + constant
            name = names.setdefault(key, f"{'w' if constant else 'x'}{len(names)}")
            (weights if constant else feeds)[name] = array
            read.append(name)
        made = [f"y{number}_{i}" for i in range(case.outputs)]
        nodes.append(helper.make_node(case.op_type, read, made, **case.attributes))
    inputs = [tensor(name, array.shape, array.dtype.name) for name, array in feeds.items()]
    made = [name for node in nodes for name in node.output]
    return direct(nodes, inputs, made, weights, opset), feeds


def differences(found: Array, expected: Array) -> str:
    """How two results differ; "" where both are alike."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{found.shape} for {expected.dtype}{expected.shape}"
    with np.errstate(all="ignore"):
        if expected.dtype.kind == "f":
            alike = (found == expected) | (np.isnan(found) & np.isnan(expected))
            close = np.isclose(found, expected, rtol=1e-4, atol=1e-6)
            alike |= close & np.isfinite(found) & np.isfinite(expected)
        else:
            alike = found == expected
    if alike.all():
        return ""
    at = np.argwhere(~alike)[0] if alike.ndim else np.array([])
    return (f"{int((~alike).sum())} of {alike.size}, such as at {at.tolist()} "
            f"{found[tuple(at)]} for {expected[tuple(at)]}; {found[~alike][:6]} for {expected[~alike][:6]}")


def refused(engine: OpenEngine, case: Hostile, opset: int) -> str | None:
    """Why the engine does not take the case."""
    graph = one_model([case], opset)[0].graph
    reasons = [engine.why_not(task, graph.tensors) for task in graph.tasks]
    return next((reason for reason in reasons if reason is not None), None)
