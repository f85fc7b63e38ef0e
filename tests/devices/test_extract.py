"""Extracted models compute what the whole model computes, run with ONNX Runtime on tiny tensors."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper
from operator_cases import FAMILIES, Case

from coexec.frontend.extract import extract, segment_inputs, tensor_part
from coexec.frontend.group import build_graph
from coexec.frontend.model import Model
from coexec.ir.graph import Piece
from coexec.ir.receptive import splittable_axes
from coexec.ir.region import Region

Array = np.ndarray[Any, Any]
Part = tuple[str, Region]
SK: list = []

quick = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=int(__import__("os").environ.get("N","60")),
    suppress_health_check=list(HealthCheck),
)


def model_of(case: Case) -> Model:
    """A model of one node, as it is: no simplification folds or fuses anything."""
    inputs, weights, names = [], [], []
    for i, given_ in enumerate(case.inputs):
        names.append("" if given_ is None else f"x{i}")
        if isinstance(given_, tuple):
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(case.dtypes.get(i, "float32")))
            inputs.append(helper.make_tensor_value_info(f"x{i}", kind, given_))
        elif given_ is not None:
            weights.append(onnx.numpy_helper.from_array(given_, f"x{i}"))
    node = helper.make_node(case.op_type, names, ["y"], name="node", **case.attributes)
    output = onnx.ValueInfoProto(name="y")
    graph = helper.make_graph([node], "g", inputs, [output], weights)
    return direct(graph, case.opset)


def direct(graph: onnx.GraphProto, opset: int = 17) -> Model:
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    )
    proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    source = ir.from_proto(proto)
    return Model(source, build_graph(source, "g"), "digest")


def run(model: ir.Model, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    proto = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(proto, options, ["CPUExecutionProvider"]).run(None, feeds)


def feeds_of(model: Model) -> dict[str, Array]:
    found = {}
    for name in model.graph.inputs:
        tensor = model.graph.tensors[name]
        values = np.random.default_rng(len(found)).standard_normal(tensor.shape)
        found[name] = np.asarray(values > 0 if tensor.dtype == "bool" else values, tensor.dtype)
    return found


@st.composite
def regions(draw: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Region:
    region = Region.whole(shape)
    for axis in axes:
        start = draw(st.integers(0, shape[axis] - 1))
        stop = draw(st.integers(start + 1, shape[axis]))
        region = region.with_axis(axis, start, stop)
    return region


@pytest.mark.parametrize("family", FAMILIES)
def test_a_piece_equals_the_slice_of_the_whole(family: str) -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(FAMILIES[family])
        try:
            model = model_of(case)
            feeds = feeds_of(model)
            whole = run(model.source, feeds)[0]
        except (onnx.shape_inference.InferenceError, ort.capi.onnxruntime_pybind11_state.Fail):
            SK.append((case.op_type,str(__import__("sys").exc_info()[1])[:150])); assume(False)
        task = model.graph.tasks[0]
        axes = splittable_axes(model.graph, task)
        shape = model.graph.output_of(task).shape
        assert whole.shape == shape
        if case.axes is not None:
            assert axes == tuple(a for a in case.axes if shape[a] > 1)
        region = data.draw(regions(shape, axes))
        small = extract(model, [Piece("node", region)], [("y", region)])
        names = segment_inputs(model.graph, [Piece("node", region)])
        found = run(small, {tensor_part(n, r, model.graph): np.asarray(feeds[n][r.slices]) for n, r in names})
        np.testing.assert_allclose(found[0], whole[region.slices], rtol=1e-5, atol=1e-5)

    check()


def test_zz():
    import collections
    for k,v in collections.Counter(SK).most_common(30): print(v,k)
