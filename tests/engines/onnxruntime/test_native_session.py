"""Sessions of ONNX Runtime's C API: what they compute, which errors they tell, what they need."""

import ctypes.util
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from coexec.engines.onnxruntime import c_api, device, native_session
from coexec.engines.onnxruntime.c_api import OrtApi, OrtApiError, ort_api
from coexec.engines.onnxruntime.native_session import NativeSession
from coexec.engines.onnxruntime.program import OrtProgram, session_entries, session_options
from coexec.engines.registry import open_devices
from coexec.errors import ExecutionError
from coexec.lowering.module import Module
from coexec.runtime.loops import loop_classes
from tests.helpers.gpu_networks import module_of
from tests.helpers.onnx_models import direct, tensor


def session(module: Module, threads: int = 1) -> NativeSession:
    return NativeSession(ort_api(), module, threads, session_entries((0,)), "cpu:0")


def products(rows: int = 64) -> Module:
    """A product with a weight of 16 KiB, and a sum."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
        helper.make_node("Add", ["p", "b"], ["y"], "sum"),
    ]
    weights = {name: rng.standard_normal((64, 64), np.float32) for name in "wb"}
    return module_of(direct(nodes, [tensor("x", [rows, 64])], ["y"], weights))


@pytest.mark.parametrize("name", list(loop_classes()))
def test_a_loop_computes_what_the_python_interface_computes(name: str) -> None:
    module = products()
    x = np.random.default_rng(1).standard_normal((64, 64), np.float32)
    expected, found = np.empty_like(x), np.empty_like(x)
    OrtProgram(module, session_options(1), "cpu:0").bind({"x": x}, {"y": expected}).run()
    bound = session(module).bind({"x": np.zeros_like(x)}, {"y": np.zeros_like(x)})
    bound.set_input("x", x)
    bound.set_output("y", found)
    loop = loop_classes()[name]([bound.native], 0, 0, 0, 0.0)
    assert loop.run([]) is None
    np.testing.assert_array_equal(found, expected)
    found[...] = 0
    bound.run()
    np.testing.assert_array_equal(found, expected)


def test_weights_are_used_where_they_lie() -> None:
    module = products()
    ours = {name: weight.copy() for name, weight in module.weights.items()}
    x, y = np.zeros((64, 64), np.float32), np.empty((64, 64), np.float32)
    bound = session(replace(module, weights=ours)).bind({"x": x}, {"y": y})
    bound.run()
    (bias,) = (weight for weight in ours.values() if (weight == y).all())
    bias += 1
    bound.run()
    np.testing.assert_array_equal(y, bias)


@pytest.mark.parametrize("name", list(loop_classes()))
def test_an_error_has_the_words_of_onnx_runtime(name: str) -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], "gather")]
    module = module_of(direct(nodes, [tensor("x", [4]), tensor("i", [1], "int64")], ["y"], {}))
    feeds = {"x": np.zeros(4, np.float32), "i": np.full(1, 9, np.int64)}
    bound = session(module).bind(feeds, {"y": np.empty(1, np.float32)})
    with pytest.raises(ExecutionError, match=r"cpu:0: .*out of data bounds"):
        bound.run()
    loop = loop_classes()[name]([bound.native], 0, 0, 0, 0.0)
    outcome = loop.run([])
    assert outcome is not None and outcome[:2] == (0, 0)
    assert "out of data bounds" in str(bound.failure(outcome[2]))


def test_types_that_the_c_api_does_not_know_are_left_to_python() -> None:
    assert ort_api().takes(["float32", "bfloat16", "bool"])
    assert not ort_api().takes(["float32", "string"])


def test_a_module_that_is_refused_has_the_error_of_the_python_interface() -> None:
    (cores,) = open_devices(["cpu:0"])
    module = Module(b"no model", {}, (), products().outputs)
    with pytest.raises(OrtApiError):
        session(module)
    with pytest.raises(Exception, match="cpu:0 cannot compile what makes y"):
        cores.engine.compile(module)


@pytest.mark.parametrize("library", [ctypes.util.find_library("m") or "libm.so.6", "absent.so"])
def test_a_library_without_the_functions_is_told_and_not_used(
    library: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def other() -> OrtApi:
        return c_api.opened(Path(library))

    monkeypatch.setattr(native_session, "ort_api", other)
    monkeypatch.setattr(device, "native_api", native_session.native_api.__wrapped__)
    with caplog.at_level(logging.INFO, "coexec"):
        (cores,) = open_devices(["cpu:0"])
        program = cores.engine.compile(products())
    assert isinstance(program, OrtProgram)
    assert "called through Python: " in caplog.text and Path(library).name in caplog.text


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    (library,) = c_api.libraries()
    monkeypatch.setattr(onnxruntime, "__version__", "0.9")
    with pytest.raises(OrtApiError, match=r"version .*, the package 0\.9"):
        OrtApi(library)


def test_an_installation_without_a_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_api, "libraries", lambda: [])
    with pytest.raises(OrtApiError, match="has no library with a C API"):
        ort_api.__wrapped__()
