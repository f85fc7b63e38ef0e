"""Does the simplified model compute what the given one computes?"""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.errors import ModelError, first_line
from coexec.frontend.module import Array

__all__ = ["HALF_TOLERANCE", "TOLERANCE", "check_same", "plain_session", "worst_difference"]

TOLERANCE = 1e-4
"""Allowed difference, relative to the largest value of an output."""

HALF_TOLERANCE = 1e-2
"""The same where tensors are stored in 16 bits."""

_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike",
                     "RandomUniform", "RandomUniformLike"})  # fmt: skip


def check_same(given: ir.Model, simplified: ir.Model, inputs: Mapping[str, Array]) -> None:
    """Run both in ONNX Runtime and compare; models that draw random numbers are let pass.

    Raises:
        ModelError: ONNX Runtime does not run the model, or an output differs.
    """
    if any(node.op_type in _RANDOM for node in given.graph.all_nodes()):
        return
    names = [v.name or "" for v in given.graph.outputs]
    expected, found = _run(given, names, inputs), _run(simplified, names, inputs)
    for name, a, b in zip(names, expected, found, strict=True):
        worst = worst_difference(b, a)
        if worst > TOLERANCE:
            raise ModelError(
                f"the simplified model differs from the given one in output {name!r}: "
                f"by {worst:.2g} of its largest value, {TOLERANCE:.0e} is allowed; this is a bug "
                f"of the simplification, please report it with the model"
            )


def _run(model: ir.Model, names: list[str], inputs: Mapping[str, Array]) -> list[Array]:
    outputs: list[Array] = plain_session(ir.to_proto(model)).run(names, dict(inputs))
    return outputs


def plain_session(model: onnx.ModelProto, threads: int = 0) -> ort.InferenceSession:
    """ONNX Runtime as its users call it. 0 threads: one for each core.

    Raises:
        ModelError: ONNX Runtime does not run the model.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    try:
        return ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise ModelError(f"ONNX Runtime does not run the model: {first_line(error)}; check it with "
                         f"onnx.checker.check_model(path, full_check=True)") from None  # fmt: skip


def worst_difference(found: Array, expected: Array) -> float:
    """Largest absolute difference, relative to the largest expected value; infinite if the
    shapes differ or one has a number where the other has none."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if not np.issubdtype(expected.dtype, np.floating):
        return 0.0 if np.array_equal(found, expected) else float("inf")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not finite.any():
        return 0.0 if np.array_equal(a, b, equal_nan=True) else float("inf")
    scale = float(np.abs(b[finite]).max()) or 1.0
    return float(np.abs(a[finite] - b[finite]).max()) / scale
