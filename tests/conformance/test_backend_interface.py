"""ONNX's backend interface: devices, inputs, single operators, errors."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.names import whole_cpu
from coexec.errors import ClosedError, DeviceError, InputError, UsageError
from tests.helpers import onnx_backend as backend

CORE = f"cpu:{usable_cores()[0]}"
X = np.array([[-1.0, 2.0]], np.float32)


def relu(rows: int | str = 1) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 2]) for n in "xy")
    graph = helper.make_graph(nodes, "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_names_of_the_interface_and_of_coexec() -> None:
    assert backend.device_names("CPU") == [f"{whole_cpu()}/onnxruntime"]
    assert backend.device_names("CPU:0") == backend.device_names("CPU")
    assert backend.supports_device(CORE) and backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:99") and not backend.supports_device("TPU")
    with pytest.raises(UsageError, match="the CPU is one device"):
        backend.prepare(relu(), "CPU:1")
    with pytest.raises(DeviceError):
        backend.prepare(relu(), "gpu:99")


def test_a_model_runs_by_order_name_and_array(cache: Cache) -> None:
    rep = backend.prepare(relu(), CORE, cache=cache)
    for inputs in ([X], {"x": X}, X):
        (y,) = outputs = rep.run(inputs)
        np.testing.assert_array_equal(y, [[0.0, 2.0]])
        np.testing.assert_array_equal(outputs["y"], y)
    rep.close()


def test_open_shapes_are_those_of_the_inputs(cache: Cache) -> None:
    rep = backend.prepare(relu("N"), CORE, cache=cache)
    for count in (3, 1):
        assert rep.run([np.repeat(X, count, axis=0)])[0].shape == (count, 2)
    rep.close()


def test_only_the_latest_shapes_have_a_plan(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[backend._Started] = []
    close = backend._Started.close
    monkeypatch.setattr(backend._Started, "close", lambda self: (closed.append(self), close(self)))
    rep = backend.prepare(relu("N"), CORE, cache=cache)
    rep.most_shapes = 2
    for count in (1, 2, 1, 3):  # the third run makes two rows the least recent shape
        assert rep.run([np.repeat(X, count, axis=0)])[0].shape == (count, 2)
    assert len(closed) == 1
    rep.run([X])
    assert len(closed) == 1
    rep.run([np.repeat(X, 2, axis=0)])
    assert len(closed) == 2
    rep.close()
    assert len(closed) == 4


@pytest.mark.parametrize("rows", [1, "N"], ids=["fixed", "open"])
def test_a_closed_model_does_not_run(rows: int | str, cache: Cache) -> None:
    rep = backend.prepare(relu(rows), CORE, cache=cache)
    rep.run([X])
    rep.close()
    rep.close()
    with pytest.raises(ClosedError, match="prepare it again"):
        rep.run([X])


def test_one_operator(cache: Cache) -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    (c,) = backend.run_node(node, [X, X], CORE, opset_version=17, cache=cache)
    np.testing.assert_array_equal(c, X + X)


def test_one_operator_with_an_array_or_with_the_same_input_twice(cache: Cache) -> None:
    relu_node = helper.make_node("Relu", ["x"], ["y"])
    (y,) = backend.run_node(relu_node, X, CORE, opset_version=17, cache=cache)
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    twice = helper.make_node("Add", ["x", "x"], ["y"])
    (y,) = backend.run_node(twice, [X, X], CORE, opset_version=17, cache=cache)
    np.testing.assert_array_equal(y, X + X)


def test_the_engine_lacks_a_kernel(cache: Cache, gpu: str) -> None:
    """Another engine computes the operator, and the reason is kept."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "first"),
        helper.make_node("NonZero", ["r"], ["y"], "second"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"])
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rep = backend.prepare(model, gpu, cache=cache)
    (found,) = rep.run([np.eye(2, dtype=np.float32)])
    np.testing.assert_array_equal(found, [[0, 1], [0, 1]])
    assert list(rep.elsewhere) == ["second"] and rep.task_count == 2
    rep.close()


def test_wrong_arguments_are_errors(cache: Cache) -> None:
    with pytest.raises(UsageError, match="the backend has no option 'cach'"):
        backend.prepare(relu(), CORE, cach=1)
    with pytest.raises(InputError, match="2 inputs are given, and the model has 1"):
        backend.run_model(relu(), [X, X], CORE, cache=cache)
    with pytest.raises(InputError, match="float64"):
        backend.run_model(relu(), [X.astype(np.float64)], CORE, cache=cache)
