"""Operators on OpenVINO against ONNX Runtime: the random cases that other engines run."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import helper

from coexec.engines.base import Device
from coexec.engines.detect import usable_cores
from coexec.model.model import Model
from tests.helpers import computing_cases, layout_cases, movement_cases
from tests.helpers.examples import scaled
from tests.helpers.onnx_models import direct, random_feeds, run, tensor
from tests.helpers.openvino_programs import compute, module_around, on_cores
from tests.helpers.operator_cases import Case

FAMILIES = {
    f"{module.__name__}.{name}": family
    for module in (computing_cases, layout_cases, movement_cases)
    for name, family in module.FAMILIES.items()
}
REFUSED = {
    "ArgMax", "AveragePool", "Clip", "Concat", "Conv", "CumSum", "GlobalLpPool", "Gather", "LRN",
    "LogSoftmax", "LpNormalization", "LpPool", "MaxPool", "MeanVarianceNormalization", "PRelu",
    "Pad", "Resize", "Slice", "Softmax", "Transpose", "Where",
}  # fmt: skip
"""Operators with cases that have a reason: types, wrapping pads, several axes, ..."""


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = on_cores(usable_cores()[-1])
    yield opened
    opened.close()


def model_around(case: Case) -> Model:
    """The operator alone, with an output for each part that Split makes."""
    inputs, weights, names = [], {}, []
    for i, given_ in enumerate(case.inputs):
        names.append("" if given_ is None else f"x{i}")
        if isinstance(given_, tuple):
            inputs.append(tensor(f"x{i}", given_, case.dtypes.get(i, "float32")))
        elif given_ is not None:
            weights[f"x{i}"] = given_
    count = len(case.inputs[1]) if case.op_type == "Split" else 1
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(case.op_type, names, outputs, "node", **case.attributes)
    return direct([node], inputs, outputs, weights, case.opset)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_operator_computes_what_onnx_runtime_does(device: Device, family: str) -> None:
    computed = 0

    @settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=scaled(6),
        suppress_health_check=list(HealthCheck),
    )
    @given(FAMILIES[family])
    def check(case: Case) -> None:
        nonlocal computed
        model = model_around(case)
        graph = model.graph
        if any(device.why_not(task, graph.tensors) for task in graph.tasks):
            assert case.op_type in REFUSED, case
            return
        computed += 1
        feeds = random_feeds(model)
        found = compute(device, module_around(model), feeds)
        for name, expected in zip(graph.outputs, run(model.source, feeds), strict=True):
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, strict=True)

    check()
    assert computed >= scaled(1)
