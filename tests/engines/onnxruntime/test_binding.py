"""Tensors of a session: what a signal handler interrupts is done again."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from onnx import helper

from coexec.engines.base import Program
from coexec.engines.onnxruntime.c_api import ort_api
from coexec.engines.onnxruntime.native_session import NativeSession
from coexec.engines.onnxruntime.program import OrtProgram, session_entries, session_options
from coexec.lowering.module import Module
from tests.helpers.gpu_networks import module_of
from tests.helpers.onnx_models import direct, tensor
from tests.runtime.test_interrupts import Injected, TimeOut


def by_python(module: Module) -> Program:
    return OrtProgram(module, session_options(1), "cpu:0")


def by_c(module: Module) -> Program:
    return NativeSession(ort_api(), module, 1, session_entries((0,)), "cpu:0")


@pytest.mark.parametrize("compiled", [by_python, by_c])
def test_a_tensor_is_bound_again_after_an_interrupted_call(
    compiled: Callable[[Module], Program],
) -> None:
    """Whichever bytecode the signal handler interrupts."""
    negation = direct([helper.make_node("Neg", ["x"], ["y"])], [tensor("x", [1000])], ["y"], {})
    first, second = np.zeros(1000, np.float32), np.ones(1000, np.float32)
    y = np.full(1000, 77, np.float32)
    run = compiled(module_of(negation)).bind({"x": first}, {"y": y})
    for x in (first, second):  # Python 3.12 counts from a function's second traced call on
        with Injected(-1, "onnxruntime") as counting:
            run.set_input("x", x)
    assert counting.seen > 10
    for at in range(counting.seen):
        for wanted in (first, second):
            run.set_input("x", first)
            with suppress(TimeOut), Injected(at, "onnxruntime"):
                run.set_input("x", second)
            run.set_input("x", wanted)
            run.run()
            assert (y == -wanted).all(), at
