"""The rows and weights of Resize give what ONNX Runtime computes; needs no OpenCL."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings

from coexec.engines.kernels.resize import taps, why_not
from tests.helpers import shape_cases
from tests.helpers.onnx_models import model_of, proto_of, run

Array = np.ndarray[Any, Any]

quick = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=120,
    suppress_health_check=list(HealthCheck),
)


def resized(x: Array, tables: dict[int, Any]) -> Array:
    """``x`` along one axis after the other, as the kernel sums it up."""
    for axis, table in tables.items():
        rows = np.moveaxis(x, axis, -1)[..., table.rows]
        x = np.moveaxis((rows * table.weights).sum(-1), -1, axis)
    return x


@pytest.mark.parametrize("family", ["resize", "upsample"])
def test_taps_give_what_onnx_runtime_computes(family: str) -> None:
    computed = 0

    @quick
    @given(shape_cases.FAMILIES[family])
    def check(case: Any) -> None:
        nonlocal computed
        x = np.random.default_rng(0).standard_normal(case.inputs[0]).astype(np.float32)
        try:
            expected = run(ir.from_proto(proto_of(case)), {"x0": x})[0]
        except Exception:
            assume(False)
        assume(expected.size)
        graph = model_of(case).graph
        op = graph.tasks[0].operators[0]
        assume(why_not(op, graph.tensors) is None)
        computed += 1
        found = resized(x.astype(np.float64), taps(op, graph.tensors))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)

    check()
    assert computed >= 20
