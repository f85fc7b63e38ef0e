"""The rows and weights of Resize give what ONNX Runtime computes; needs no OpenCL."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings

from coexec.engines.kernels.resize import why_not
from coexec.engines.kernels.resize_taps import taps
from tests.helpers import shape_cases
from tests.helpers.onnx_models import model_of, proto_of, random_feeds, run

Array = np.ndarray[Any, Any]

quick = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=120,
    suppress_health_check=list(HealthCheck),
)


def resized(x: Array, tables: dict[int, Any], outside: float) -> Array:
    """``x`` along one axis after the other, as the kernel sums it up."""
    found, beyond = x.astype(np.float64), np.zeros([], bool)
    for axis, table in tables.items():
        rows = np.moveaxis(found, axis, -1)[..., np.maximum(table.rows, 0)]
        found = np.moveaxis((rows * table.weights).sum(-1), -1, axis)
        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        beyond = beyond | (table.rows < 0).any(1).reshape(shape)
    return np.where(beyond, outside, found)


@pytest.mark.parametrize("family", ["resize", "upsample"])
def test_taps_give_what_onnx_runtime_computes(family: str) -> None:
    @quick
    @given(shape_cases.FAMILIES[family])
    def check(case: Any) -> None:
        x = np.random.default_rng(0).standard_normal(case.inputs[0]).astype(np.float32)
        try:
            expected = run(ir.from_proto(proto_of(case)), {"x0": x})[0]
        except Exception:
            assume(False)
        assume(expected.size)
        graph = model_of(case).graph
        op = graph.tasks[0].operators[0]
        assert why_not(op, graph.tensors) is None
        found = resized(x, taps(op, graph.tensors), op.number("extrapolation_value", 0.0))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)

    check()


def test_an_aspect_ratio_is_not_kept_of_axes_counted_from_the_last() -> None:
    """ONNX Runtime takes no scale for these."""
    case = shape_cases.Case(
        "Resize",
        ((1, 2, 5, 8), None, None, np.array([10, 12])),
        {"axes": [-2, -1], "keep_aspect_ratio_policy": "not_larger"},
        18,
    )
    graph = model_of(case).graph
    assert run(model_of(case).source, random_feeds(model_of(case)))[0].shape == (1, 2, 5, 8)
    assert graph.tensors["y"].shape == (1, 2, 5, 8)
    reason = why_not(graph.tasks[0].operators[0], graph.tensors)
    assert reason == "Resize that keeps the aspect ratio of axes counted from the last"
