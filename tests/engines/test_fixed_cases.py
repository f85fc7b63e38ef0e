"""Named cases, which engines with kernels compute as ONNX Runtime does.

A wrong answer gets its case here, because the random families of `tests.helpers` may never draw its
shape. OpenCL runs each case with kernels for cores and for a GPU.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from tests.helpers.gpu_networks import run_on
from tests.helpers.kernel_cases import Example, model_of
from tests.helpers.onnx_models import random_feeds, run
from tests.helpers.operator_cases import Case, random

CASES: Mapping[str, tuple[Example, str]] = {
    "Conv 3x3 with blocks that are not full, and a Mul behind": (
        Example(Case("Conv", ((1, 20, 9, 7), random((20, 20, 3, 3))), {"pads": [1] * 4})),
        "Mul",
    ),
    "Conv 3x3 of each channel by itself, in steps of two": (
        Example(
            Case(
                "Conv",
                ((2, 20, 9, 7), random((20, 1, 3, 3)), random((20,))),
                {"group": 20, "strides": [2, 2], "pads": [0, 1, 1, 0]},
            )
        ),
        "",
    ),
    "Softmax of rows that end inside of a vector": (Example(Case("Softmax", ((2, 3, 130),))), ""),
}
"""By name, the operator, and the type of the operator behind it, which is computed with it; "":
none."""


@pytest.fixture(scope="module", params=["OpenCL", "OpenCL as on a GPU", "OpenVINO"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenEngine]:
    """Skips the engines that are not installed."""
    opened: OpenEngine
    if request.param == "OpenVINO":
        from tests.helpers.openvino_programs import on_cores

        opened = on_cores(usable_cores()[-1])
    else:
        pytest.importorskip("pyopencl")
        from tests.helpers.opencl_programs import on_cpu

        opened = on_cpu(tmp_path_factory.mktemp("binaries"), as_gpu=request.param != "OpenCL")
    yield opened
    opened.close()


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_computed_as_by_onnx_runtime(engine: OpenEngine, name: str) -> None:
    model = model_of(*CASES[name])
    graph, feeds = model.graph, random_feeds(model)
    for task in graph.tasks:
        if (reason := engine.why_not(task, graph.tensors)) is not None:
            pytest.skip(f"{engine.info.name} refuses it: {reason}")
    found = run_on(engine, model, feeds)
    for output, expected in zip(graph.outputs, run(model.source, feeds), strict=True):
        np.testing.assert_allclose(found[output], expected, rtol=1e-4, atol=1e-4, strict=True)
