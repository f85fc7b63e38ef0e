"""The OpenVINO device: precision, memory, outputs that nothing computes, plans, errors."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.opened import OpenDevice
from coexec.engines.openvino.device import OpenVinoDevice
from coexec.engines.openvino.reading import read
from coexec.engines.registry import open_devices
from coexec.errors import DeviceError, ExecutionError
from coexec.graph.graph import Tensor
from coexec.lowering.module import Module
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from tests.engines.test_devices import alternating, places_of
from tests.helpers.gpu_networks import mixed_network, module_of
from tests.helpers.onnx_models import direct, random_feeds, run, tensor
from tests.helpers.openvino_programs import compute, module_around, on_cores
from tests.helpers.small_models import branches

FIRST, LAST = usable_cores()[0], usable_cores()[-1]
TOLERANCE = {"float32": 1e-4, "bf16": 2e-2, "fp16": 1e-2}


@pytest.fixture
def device() -> Iterator[OpenVinoDevice]:
    opened = on_cores(LAST)
    yield opened
    opened.close()


@pytest.mark.parametrize("precision", TOLERANCE)
def test_a_network_in_every_precision(precision: str) -> None:
    try:
        device = on_cores(LAST, precision=precision)
    except DeviceError as error:
        assert precision != "float32"
        pytest.skip(str(error))
    proto = mixed_network()
    model = load(proto)
    feeds = random_inputs(model.graph)
    found = compute(device, module_of(model), feeds)
    names = [output.name for output in proto.graph.output]
    differences = [
        worst_difference(found[name], expected)
        for name, expected in zip(names, plain_session(proto).run(names, feeds), strict=True)
    ]
    assert max(differences) < TOLERANCE[precision]
    if precision != "float32":
        assert max(differences) > 1e-5  # it was not computed in float32


def test_precisions_that_do_not_exist_are_refused() -> None:
    with pytest.raises(DeviceError, match="precision 'fp8' is none of float32, bf16, fp16"):
        on_cores(LAST, precision="fp8")


NODES = {
    "identity": helper.make_node("Identity", ["x"], ["y"], "n"),
    "dropout": helper.make_node("Dropout", ["x"], ["y"], "n"),
    "sum of one": helper.make_node("Sum", ["x"], ["y"], "n"),
    "reshape": helper.make_node("Reshape", ["x", "shape"], ["y"], "n"),
}


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("behind", [False, True], ids=["input", "computed"])
def test_outputs_that_nothing_computes(device: OpenVinoDevice, name: str, behind: bool) -> None:
    """Of an input, and of a value that is an output too."""
    nodes, outputs = [NODES[name]], ["y"]
    if behind:
        node = onnx.NodeProto()
        node.CopyFrom(NODES[name])
        node.input[0] = "a"
        nodes, outputs = [helper.make_node("Neg", ["x"], ["a"], "neg"), node], ["y", "a"]
    weights = {"shape": np.array([6])} if name == "reshape" else {}
    model = direct(nodes, [tensor("x", (2, 3))], outputs, weights)
    feeds = random_feeds(model)
    found = compute(device, module_around(model), feeds)
    for output, expected in zip(outputs, run(model.source, feeds), strict=True):
        np.testing.assert_array_equal(found[output], expected, strict=True)


def test_constants_scalars_integers_and_unread_inputs(device: OpenVinoDevice) -> None:
    nodes = [
        helper.make_node("Identity", ["c"], ["constant"], "c"),
        helper.make_node("ReduceSum", ["x"], ["scalar"], "s", keepdims=0),
        helper.make_node("ArgMax", ["x"], ["places"], "p", axis=1),
        helper.make_node("Greater", ["x", "z"], ["mask"], "m"),
        helper.make_node("Gather", ["x", "i"], ["rows"], "g"),
    ]
    inputs = [
        tensor("unread", (4,)),
        tensor("x", (2, 3)),
        tensor("z", ()),
    ]
    outputs = ["constant", "scalar", "places", "mask", "rows"]
    weights = {"c": np.arange(4, dtype=np.float32), "i": np.array([1, -2])}
    model = direct(nodes, inputs, outputs, weights)
    feeds = random_feeds(model) | {"unread": np.zeros(4, np.float32)}
    found = compute(device, module_around(model), feeds)
    for name, expected in zip(outputs, run(model.source, feeds), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, strict=True)


def test_tensors_can_be_exchanged_between_runs(device: OpenVinoDevice) -> None:
    model = direct([helper.make_node("Neg", ["x"], ["y"], "n")], [tensor("x", (2, 3))], ["y"], {})
    arrays = [np.full((2, 3), value, np.float32) for value in (1.0, 2.0)]
    arrays[1].flags.writeable = False
    results = [np.zeros((2, 3), np.float32) for _ in arrays]
    bound = device.compile(module_around(model)).bind({"x": arrays[0]}, {"y": results[0]})
    bound.run()
    bound.set_input("x", arrays[1])
    bound.set_output("y", results[1])
    bound.run()
    assert results[0].max() == -1 and results[1].max() == -2
    bound.set_input("x", np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    bound.run()
    assert results[1].ravel().tolist() == [0, -1, -2, -3, -4, -5]


def test_weights_are_not_copied(device: OpenVinoDevice) -> None:
    weight = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    weight.flags.writeable = False
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "n")
    external = onnx.TensorProto(name="w", data_type=1, dims=weight.shape)
    external.data_location = onnx.TensorProto.EXTERNAL
    ends = [[tensor(name, (2, 256))] for name in ("x", "y")]
    graph = helper.make_graph([node], "g", *ends, [external])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x, y = (Tensor(name, (2, 256), "float32") for name in ("x", "y"))
    module = Module(proto.SerializeToString(), {"w": weight}, (x,), (y,))
    (constant,) = [
        op
        for op in read(module).model.get_ops()
        if op.get_type_name() == "Constant" and op.get_byte_size() == weight.nbytes
    ]
    address = constant.get_data().__array_interface__["data"][0]
    assert address == weight.__array_interface__["data"][0]
    feeds = {"x": np.ones((2, 256), np.float32)}
    found = compute(device, module, feeds)
    np.testing.assert_allclose(found["y"], feeds["x"] @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("other", ["openvino", "onnxruntime"])
def test_plans_over_two_devices(other: str, cache: Cache) -> None:
    if FIRST == LAST:
        pytest.skip("needs two cores")
    proto = branches()
    model = load(proto)
    feeds = random_inputs(model.graph)
    second = open_devices([f"cpu:{FIRST}"])[0]
    if other == "openvino":
        second = OpenDevice.of(on_cores(FIRST))
    devices = [OpenDevice.of(on_cores(LAST)), second]
    schedule = derive(alternating(model.graph, places_of(devices)), model.graph)
    with Executor(Compiler(model, cache).compile(schedule, devices), devices) as executor:
        for _ in range(3):
            found = executor.run(feeds)
    for name, expected in zip(["y", "joined"], plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(found[name], expected) < 1e-4


def test_what_cannot_be_compiled_is_a_device_error(device: OpenVinoDevice) -> None:
    model = direct([helper.make_node("Neg", ["x"], ["y"], "n")], [tensor("x", (2,))], ["y"], {})
    module = module_around(model)
    proto = onnx.load_model_from_string(module.proto)
    proto.graph.node[0].op_type = "Unheard"
    broken = Module(proto.SerializeToString(), {}, module.inputs, module.outputs)
    with pytest.raises(
        DeviceError, match=r"compiling what makes y \(.*Unheard.*elsewhere"
    ) as error:
        device.compile(broken)
    assert "\n" not in str(error.value)
    wrong = Module(module.proto, {}, module.inputs, (Tensor("y", (3,), "float32"),))
    with pytest.raises(DeviceError, match=r"'y' float32 \(2,\), and ONNX float32 \(3,\)"):
        device.compile(wrong)


def test_a_failing_run_is_an_execution_error(device: OpenVinoDevice) -> None:
    """An array of another shape than the program was compiled for: OpenVINO refuses it."""
    model = direct([helper.make_node("Neg", ["x"], ["y"], "n")], [tensor("x", (2,))], ["y"], {})
    bound = device.compile(module_around(model)).bind(
        {"x": np.ones(2, np.float32)}, {"y": np.ones(2, np.float32)}
    )
    with pytest.raises(ExecutionError, match=rf"^{device.device.name}: .*\S$") as caught:
        bound.set_input("x", np.ones(3, np.float32))
    assert "\n" not in str(caught.value) and "Exception from" not in str(caught.value)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs alarms of POSIX")
def test_errors_of_signal_handlers_pass(device: OpenVinoDevice) -> None:
    def handler(*_: object) -> None:
        raise RuntimeError("the user's")

    model = direct([helper.make_node("Neg", ["x"], ["y"], "n")], [tensor("x", (2,))], ["y"], {})
    x, y = np.ones(2, np.float32), np.ones(2, np.float32)
    bound = device.compile(module_around(model)).bind({"x": x}, {"y": y})
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(RuntimeError, match="the user's"):
            while True:
                bound.run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_models_compile_in_several_threads(device: OpenVinoDevice) -> None:
    model = load(mixed_network())
    module, feeds = module_of(model), random_inputs(model.graph)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(compute(device, module, feeds)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for outputs in found[1:]:
        for name, array in outputs.items():
            assert worst_difference(array, found[0][name]) < 1e-6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_programs_of_one_core_work_in_a_forked_child(device: OpenVinoDevice) -> None:
    assert device.after_fork == "works"
    model = direct([helper.make_node("Neg", ["x"], ["y"], "n")], [tensor("x", (2,))], ["y"], {})
    x, y = np.ones(2, np.float32), np.ones(2, np.float32)
    bound = device.compile(module_around(model)).bind({"x": x}, {"y": y})
    bound.run()
    y.fill(0)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # the child must not hang
        bound.run()
        os._exit(0 if y.tolist() == [-1, -1] else 1)
    assert os.waitpid(child, 0)[1] == 0
