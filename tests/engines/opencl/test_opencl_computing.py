"""Kernels that compute along axes and over windows: against ONNX Runtime, on PoCL.

PoCL runs them as it would, and as GPUs do: with smaller vectors, and with groups of work items that
share a row. Shapes are drawn so that tensors lie row-major, in whole blocks of channels, and in
blocks that are not full. Every shape is a kernel of its own that takes a moment to compile, so
examples are few.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.engines.base import OpenEngine
from coexec.model.model import Model
from tests.helpers.examples import scaled
from tests.helpers.kernel_cases import FAMILIES, Example, model_of
from tests.helpers.onnx_models import direct, random_feeds, run, tensor
from tests.helpers.operator_cases import Case

pytest.importorskip("pyopencl")

from tests.helpers.opencl_programs import compute, on_cpu

quick = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=scaled(3),
    suppress_health_check=list(HealthCheck),
)

Devices = dict[str, OpenEngine]


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devices]:
    binaries = tmp_path_factory.mktemp("binaries")
    opened = {kind: on_cpu(binaries, as_gpu=kind == "gpu") for kind in ("cpu", "gpu")}
    yield opened
    for device in opened.values():
        device.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_operator_computes_what_onnx_runtime_does(devices: Devices, family: str) -> None:
    @quick
    @given(FAMILIES[family], st.sampled_from(["", "Neg", "Mul"]), st.sampled_from(["cpu", "gpu"]))
    def check(example: Example, after: str, kind: str) -> None:
        model = model_of(example, after)
        feeds = random_feeds(model)
        if example.positive:
            feeds = {name: np.asarray(abs(v) + 1, v.dtype) for name, v in feeds.items()}
        expected = run(model.source, feeds)
        if _is_slow_on_cores(devices["cpu"], model):
            kind = "gpu"
        for found, wanted in zip(compute(devices[kind], model, feeds), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4, strict=True)

    check()


def _is_slow_on_cores(cores: OpenEngine, model: Model) -> bool:
    """Whether the kernels compute a model, and are left to GPUs for the time they take."""
    reasons = [cores.why_not(task, model.graph.tensors) or "" for task in model.graph.tasks]
    return any("ONNX Runtime's time" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("ReduceSum", ((2, 3), (1,)), {}, 17, {1: "int64"}), "axes of ReduceSum is computed"),
        (Case("Gather", ((2, 3), (1,)), {}, 17, {1: "int64"}), "indices of Gather are computed"),
        (Case("Conv", ((1, 2, 3, 3), (2, 2, 1, 1))), "weights of Conv are computed"),
        (Case("ReduceMean", ((2, 3),), {"axes": [1]}, 13, {0: "int64"}), "ReduceMean of int64"),
        (Case("LogSoftmax", ((2, 3),), {}, 17, {0: "float64"}), "LogSoftmax of float64"),
        (Case("LRN", ((1, 2, 3, 3),), {"size": 3}), "no kernel for LRN: only networks of before"),
    ],
)
def test_what_no_kernel_computes_is_refused_with_the_reason(
    devices: Devices, case: Case, reason: str
) -> None:
    outputs = [tensor("y", (2, 3))] if case.op_type == "ReduceSum" else ["y"]
    inputs, weights, names = [], {}, []
    for i, item in enumerate(case.inputs):
        names.append(f"x{i}")
        if isinstance(item, tuple):
            inputs.append(tensor(f"x{i}", item, case.dtypes.get(i, "float32")))
        else:
            weights[f"x{i}"] = item
    node = helper.make_node(case.op_type, names, ["y"], "node", **case.attributes)
    graph = direct([node], inputs, outputs, weights, case.opset).graph
    assert reason in (devices["cpu"].why_not(graph.tasks[0], graph.tensors) or "")
