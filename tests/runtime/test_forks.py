"""Forked children of processes that have used the engine `cpp`, and of those that have not.

Each test is a process of its own, because a fork copies whatever this one has loaded.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.core_programs import cpp_name

if not hasattr(os, "fork"):
    pytest.skip("this system does not fork", allow_module_level=True)

_PROGRAM = """
import multiprocessing, sys, warnings
import numpy as np
from onnx import TensorProto, helper, numpy_helper
import coexec

warnings.simplefilter("ignore")
node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
w = np.ones((32, 32, 3, 3), np.float32)
shape = [1, 32, 8, 8]
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
graph = helper.make_graph(
    [node], "g", [value("x")], [value("y")], [numpy_helper.from_array(w, "w")])
imports = [helper.make_opsetid("", 17)]
model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
x = np.ones(shape, np.float32)

def opened():
    return coexec.InferenceSession(
        model, devices=[sys.argv[1]], planner="single", cache=sys.argv[2])

def told(session):
    right = session.run(None, {"x": x})[0][0, 0, 1, 1] == 288
    print(right, session.degraded, flush=True)

def child(inherited=None):
    if inherited is not None:
        told(inherited)
    told(opened())

def run_child(method, *arguments):
    process = multiprocessing.get_context(method).Process(target=child, args=arguments)
    process.start()
    process.join(60)
    if process.exitcode is None:
        process.kill()
    print("exit", process.exitcode, flush=True)

if __name__ == "__main__":
"""


def _lines(body: str, folder: Path, cores: int = 1) -> list[str]:
    """What the program prints whose main part is ``body``."""
    program = folder / "program.py"
    program.write_text(_PROGRAM + body)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, program, cpp_name(cores), folder / "cache"]
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=90, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_child_of_a_process_that_uses_the_engine_answers(cores: int, tmp_path: Path) -> None:
    """Both with the session that it inherits, and with one of its own."""
    body = "    session = opened(); told(session)\n    run_child('fork', session)\n"
    assert _lines(body, tmp_path, cores) == [*["True None"] * 3, "exit 0"]


def test_a_child_of_a_process_without_the_engine_uses_it(tmp_path: Path) -> None:
    assert _lines("    run_child('fork')\n", tmp_path) == ["True None", "exit 0"]


@pytest.mark.long
def test_inherited_objects_may_be_destroyed(tmp_path: Path) -> None:
    """The child ends as those of multiprocessing do: at the usual end of a program, ONNX Runtime
    waits for its own threads of the parent."""
    body = """\
    import gc, os
    session = opened(); told(session)
    process = os.fork()
    if process == 0:
        told(session)
        session.close()
        del session
        gc.collect()
        os._exit(0)
    print("exit", os.waitpid(process, 0)[1])
"""
    assert _lines(body, tmp_path) == ["True None", "True None", "exit 0"]
