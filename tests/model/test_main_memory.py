"""Memory: a model is read and loaded with few copies of its weights, and a limit is kept."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers.small_models import from_nodes, tensor_info

WEIGHT_BYTES = 64 << 20
READ = """
from coexec.model.read import read
model = read(sys.argv[1])
"""
LOAD = """
from coexec.cache import Cache
from coexec.selection.user_model import UserModel
model = UserModel(sys.argv[1], {}, Cache(sys.argv[2])).model
"""
CHECK = """
from coexec.model.load import load
load(sys.argv[1], check=True)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product with one weight of `WEIGHT_BYTES`, in the model's own file."""
    weight = np.ones((2048, WEIGHT_BYTES // 2048 // 4), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    ends = [tensor_info("x", [1, 2048])], [tensor_info("y", [1, weight.shape[1]])]
    file = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(from_nodes(nodes, *ends, {"w": weight}), str(file))
    return file


def growth(program: str, *words: str) -> tuple[float, float]:
    """Peak of resident memory, and private memory at the end of a program that runs in a process of
    its own, both above the start and as multiples of `WEIGHT_BYTES`."""
    measured = f"""
import re, sys
import coexec.selection.user_model, coexec.model.load, coexec.model.check, onnxruntime
from coexec.model.main_memory import peak_bytes, resident_bytes
def private_bytes():
    text = open("/proc/self/smaps_rollup").read()
    return 1024 * int(re.search(r"Anonymous:\\s*(\\d+)", text)[1])
before, private = resident_bytes(), private_bytes()
{program}
print(peak_bytes() - before, private_bytes() - private)
"""
    done = subprocess.run(
        [sys.executable, "-c", measured, *words], capture_output=True, text=True, check=True
    )
    peak, left = (int(text) / WEIGHT_BYTES for text in done.stdout.split())
    return peak, left


def test_a_model_is_read_with_one_copy_of_its_weights(path: Path) -> None:
    """The bytes of the file beside the decoded message would be two."""
    assert growth(READ, str(path))[0] < 1.5


def test_a_loaded_model_has_its_weights_in_files_alone(path: Path, tmp_path: Path) -> None:
    """ONNX Runtime's session for the check packs the weight, beside the one that was read: four
    copies at a time at most, and none that stays."""
    peak, left = growth(LOAD, str(path), str(tmp_path))
    assert peak < 4.5 and left < 0.5


def test_a_check_does_not_keep_all_activations(tmp_path: Path) -> None:
    """Of 40, each as large as `WEIGHT_BYTES`; ONNX Runtime holds half of them in blocks. To compare
    outputs takes a dozen."""
    nodes = [
        helper.make_node("Sigmoid", [f"v{i}"], [f"v{i + 1}"])
        if i % 2
        else helper.make_node("MaxPool", [f"v{i}"], [f"v{i + 1}"], kernel_shape=[1, 1])
        for i in range(40)
    ]
    ends = (tensor_info(name, [1, 16, 1024, 1024]) for name in ("v0", "v40"))
    onnx.save(from_nodes(nodes, *([end] for end in ends)), str(tmp_path / "m.onnx"))
    assert growth(CHECK, str(tmp_path / "m.onnx"))[0] < 20


def test_allocations_beyond_the_limit_fail() -> None:
    program = """
from coexec.errors import ExecutionError
from coexec.model.main_memory import bounded_memory, main_memory_bytes
import numpy as np
try:
    with bounded_memory(1 << 30):
        assert main_memory_bytes() == 1 << 30
        np.ones(1 << 31, np.uint8)
except ExecutionError as error:
    print(error)
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "more memory than memory_limit=1.00 GiB; give it more" in done.stdout
