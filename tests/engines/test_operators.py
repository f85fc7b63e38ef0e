"""Operators on engines with kernels, beside ONNX Runtime: random cases and named ones.

The engine `cpp` computes each case with kernels for cores, and OpenCL with kernels for a GPU: with
smaller vectors, and with groups of work items that share a row. Shapes are drawn so that
tensors lie row-major, in whole blocks of channels, and in blocks that are not full. Every shape is
a kernel of its own that takes a moment to compile, so examples are few. A wrong answer gets its
case in `CASES`, because the random families may never draw its shape.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.model.model import Model
from tests.helpers import computing_cases, layout_cases
from tests.helpers.core_programs import opened_cpp
from tests.helpers.examples import scaled
from tests.helpers.gpu_networks import run_on
from tests.helpers.onnx_models import direct, random_feeds, run, tensor
from tests.helpers.opencl_gpu import opened
from tests.helpers.operator_cases import Case, Draw, images, ints, random

CASES: Mapping[str, tuple[Case, str]] = {
    "Conv 3x3 with blocks that are not full, and a Mul behind": (
        Case("Conv", ((1, 20, 9, 7), random((20, 20, 3, 3))), {"pads": [1] * 4}),
        "Mul",
    ),
    "Conv 3x3 of each channel by itself, in steps of two": (
        Case(
            "Conv",
            ((2, 20, 9, 7), random((20, 1, 3, 3)), random((20,))),
            {"group": 20, "strides": [2, 2], "pads": [0, 1, 1, 0]},
        ),
        "",
    ),
    "Softmax of rows that end inside of a vector": (Case("Softmax", ((2, 3, 130),)), ""),
}
"""By name, the operator, and the type of the operator behind it, which is computed with it; "":
none."""


@st.composite
def split(draw: Draw) -> Case:
    """Split, mostly along channels, at borders of blocks and inside blocks."""
    sizes = draw(st.sampled_from([(16, 16), (16, 8), (3, 20, 17), (1, 1, 1)]))
    axis = draw(st.sampled_from([1, 1, 0, 2]))
    shape = [draw(st.integers(1, 2)), 20, 2, 3]
    shape[axis] = sum(sizes)
    return Case("Split", (tuple(shape), ints(*sizes)), {"axis": axis})


@st.composite
def of_other_types(draw: Draw) -> Case:
    """Operators on types that are row-major in any shape."""
    dtype = draw(st.sampled_from(["int64", "uint8", "bool", "float64", "int8"]))
    shape = images(draw)
    cases = [
        Case("Transpose", (shape,), {"perm": [0, 2, 3, 1]}),
        Case("Concat", (shape, shape), {"axis": 1}),
        Case("Gather", (shape, ints(1, -1, 0)), {"axis": 2}),
        Case("Slice", (shape, ints(1), ints(3), ints(2))),
        Case("Where", (shape, shape, (1, 1, *shape[2:])), dtypes={0: "bool"}),
    ]
    case = draw(st.sampled_from(cases if dtype in ("int64", "uint8") else cases[:-1]))
    dtypes = {i: dtype for i in range(3)} | case.dtypes
    return Case(case.op_type, case.inputs, case.attributes, dtypes=dtypes)


FAMILIES = {
    **computing_cases.FAMILIES,
    **layout_cases.FAMILIES,
    "split": split(),
    "of_other_types": of_other_types(),
}
REFUSED = {
    "ArgMax", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "CumSum",
    "DequantizeLinear", "Gather", "GlobalLpPool", "LRN", "LogSoftmax", "LpNormalization", "LpPool",
    "MaxPool", "PRelu", "Pad", "QuantizeLinear", "ReduceLogSumExp",
    "ReduceMax", "ReduceMin", "Resize", "Slice", "Softmax", "Transpose", "Where",
}  # fmt: skip
"""Operators with cases that an engine refuses: types, several axes, rare ones, ..."""


@pytest.fixture(scope="module", params=["cpp", "OpenCL", "OpenVINO"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenEngine]:
    """Skips the engines that are not installed."""
    made: OpenEngine
    if request.param == "OpenVINO":
        from tests.helpers.openvino_programs import on_cores

        made = on_cores(usable_cores()[-1])
    elif request.param == "cpp":
        made = opened_cpp(tmp_path_factory.mktemp("kernels"))
    else:
        made = opened(tmp_path_factory.mktemp("binaries"))
    yield made
    made.close()


def model_around(case: Case, before: bool, behind: str) -> Model:
    """The operator, with an output for each part that Split makes.

    Args:
        before: a Neg computes what the operator reads, in whole vectors of channels.
        behind: the type of an operator behind it, which is computed with it; "": none.
    """
    inputs, weights, names, nodes = [], {}, [], []
    for i, item in enumerate(case.inputs):
        names.append("" if item is None else f"x{i}")
        if isinstance(item, tuple):
            dtype = case.dtypes.get(i, "float32")
            inputs.append(tensor(f"x{i}", item, dtype))
            if before and dtype == "float32":
                nodes.append(helper.make_node("Neg", [f"x{i}"], [f"n{i}"], f"before {i}"))
                names[-1] = f"n{i}"
        elif item is not None:
            weights[f"x{i}"] = item
    results = [f"y{i}" for i in range(len(case.inputs[1]) if case.op_type == "Split" else 1)]
    nodes.append(helper.make_node(case.op_type, names, results, "node", **case.attributes))
    if case.shape:
        return direct(nodes, inputs, [tensor(results[0], case.shape)], weights, case.opset)
    plain = direct(nodes, inputs, results, weights, case.opset)
    made = plain.graph.tensors["y0"]
    if not behind or made.dtype != "float32" or len(results) > 1:
        return plain
    more = [tensor("more", made.shape)] if behind == "Mul" else []
    last = helper.make_node(behind, ["y0", *(m.name for m in more)], ["z"], "behind")
    return direct([*nodes, last], [*inputs, *more], ["z"], weights, case.opset)


def feeds_of(model: Model, case: Case, before: bool) -> dict[str, Any]:
    """Random numbers; positive where logarithms and variances are of them."""
    feeds = random_feeds(model)
    if case.op_type.startswith("Reduce") or case.op_type == "BatchNormalization":
        sign = -1 if before else 1
        feeds = {n: np.asarray(sign * (abs(v) + 1), v.dtype) for n, v in feeds.items()}
    return feeds


def compare(engine: OpenEngine, model: Model, feeds: dict[str, Any]) -> None:
    found = run_on(engine, model, feeds)
    tolerance = 1e-5 if engine.info.name == "openvino" else 1e-4
    for output, expected in zip(model.graph.outputs, run(model.source, feeds), strict=True):
        made = found[output]
        np.testing.assert_allclose(made, expected, rtol=tolerance, atol=tolerance, strict=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_operator_is_computed_as_by_onnx_runtime(engine: OpenEngine, family: str) -> None:
    on_openvino = engine.info.name == "openvino"
    computed = 0

    @settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=scaled(6 if on_openvino else 3),
        suppress_health_check=list(HealthCheck),
    )
    @given(FAMILIES[family], st.booleans(), st.sampled_from(["", "Neg", "Mul"]))
    def check(case: Case, before: bool, behind: str) -> None:
        nonlocal computed
        model = model_around(case, before and not on_openvino, "" if on_openvino else behind)
        if any(engine.why_not(task, model.graph.tensors) for task in model.graph.tasks):
            assert case.op_type in REFUSED, case
            return
        computed += 1
        compare(engine, model, feeds_of(model, case, before and not on_openvino))

    check()
    assert computed or family in ("quantize", "rare")


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_computed_as_by_onnx_runtime(engine: OpenEngine, name: str) -> None:
    case, behind = CASES[name]
    model = model_around(case, False, behind)
    for task in model.graph.tasks:
        if (reason := engine.why_not(task, model.graph.tensors)) is not None:
            pytest.skip(f"{engine.info.name} refuses it: {reason}")
    compare(engine, model, random_feeds(model))
