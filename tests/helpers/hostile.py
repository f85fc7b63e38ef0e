"""Values that are rare in practice: -0, denormals, extreme integers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx import NodeProto, helper

from coexec.engines.base import OpenEngine
from coexec.model.model import Model
from tests.helpers.onnx_models import direct, tensor

Array = np.ndarray[Any, Any]

FLOATS = np.array(
    [
        -0.0,
        0.0,
        1e-40,
        -1e-40,
        1.4e-45,
        1.2e-38,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -1.5,
        -2.5,
        88.7,
        89.5,
        -88.0,
        -104.0,
        1e10,
        -1e10,
        3.0,
        -3.0,
        0.1,
        -0.1,
        6.5,
        20.0,
        -20.0,
    ],
    np.float32,
)


@dataclass(frozen=True)
class Hostile:
    """One node with its input arrays. Arrays that are not constants are fed."""

    op_type: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    """Numbers of the inputs that are constants of the model."""
    outputs: int = 1

    @property
    def title(self) -> str:
        shapes = ("-" if a is None else f"{a.dtype.name}{list(a.shape)}" for a in self.inputs)
        return f"{self.op_type} {' '.join(shapes)} {dict(self.attributes) or ''}"


def integers(dtype: str) -> Array:
    """The extreme integers of a type, their neighbours, and small integers."""
    limits = np.iinfo(dtype)
    small = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 100]
    signed = [-v for v in small] if limits.min < 0 else []
    ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2]
    values = [*ends, *small, *signed]
    return np.array([v for v in values if limits.min <= v <= limits.max], dtype)


def laid_out(values: Array, shape: Sequence[int], seed: int = 0) -> Array:
    """An array of ``shape`` with ``values``, repeated and in random order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.resize(values, int(np.prod(shape)))).reshape(shape)


def one_model(
    cases: Sequence[Hostile], opset: int, behind: str = ""
) -> tuple[Model, dict[str, Array]]:
    """A model with a node for each case, and its feeds. An array that several cases share is one
    input.

    Args:
        behind: an operator that is applied to each output of each case.
    """
    nodes: list[NodeProto] = []
    feeds: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    names: dict[int, str] = {}
    ends: list[str] = []
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
        inside = [f"{name}_inside" for name in made] if behind else made
        nodes.append(helper.make_node(case.op_type, read, inside, **case.attributes))
        ends += made
        if behind:
            nodes += [helper.make_node(behind, [a], [b]) for a, b in zip(inside, made, strict=True)]
    inputs = [tensor(name, array.shape, array.dtype.name) for name, array in feeds.items()]
    return direct(nodes, inputs, ends, weights, opset), feeds


def answers_of_ort(model: Model, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of ONNX Runtime in a session with default optimisation, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    proto = ir.to_proto(model.source).SerializeToString()
    session = ort.InferenceSession(proto, options, ["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, dict(feeds))
    return outputs


def differences(found: Array, expected: Array) -> str:
    """Description of the differences of two results; "" if there are none."""
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
    at = np.argwhere(~alike)[0].tolist() if alike.ndim else []
    examples = f"{found[~alike][:4]} for {expected[~alike][:4]}"
    return f"{int((~alike).sum())} of {alike.size} differ, the first at {at}: {examples}"


def refused(engine: OpenEngine, case: Hostile, opset: int) -> str | None:
    """The reason why the engine refuses the case; None if it accepts it."""
    graph = one_model([case], opset)[0].graph
    reasons = [engine.why_not(task, graph.tensors) for task in graph.tasks]
    return next((reason for reason in reasons if reason is not None), None)
