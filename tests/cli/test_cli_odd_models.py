"""Models without anything to compute, and outputs that are no arrays."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli import main
from coexec.engines.detect import usable_cores
from tests.helpers.small_models import from_nodes, tensor_info

pytestmark = pytest.mark.usefixtures("quick_choice", "no_memory")

TWO = ",".join(f"cpu:{core}" for core in usable_cores()[:2])


def call(folder: Path, *words: str) -> int:
    return main([*words, "--cache", str(folder / "cache")])


def test_a_model_that_returns_its_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x = tensor_info("x", [3])
    path, plan, result = (str(tmp_path / n) for n in ("x.onnx", "plan.json", "out.npz"))
    onnx.save(from_nodes([], [x], [x]), path)
    assert call(tmp_path, "plan", path, "--devices", TWO, "--output", plan) == 0
    assert call(tmp_path, "run", path, "--plan", plan, "--check", "--output", result) == 0
    assert np.load(result)["x"].shape == (3,)
    assert call(tmp_path, "inspect", path) == 0
    for verb in ("explain", "simulate", "profile"):
        assert call(tmp_path, verb, path, "--devices", TWO) == 0
    capfd.readouterr()
    assert call(tmp_path, "bench", path, "--devices", TWO, "--repeats", "2") == 0
    printed = capfd.readouterr()
    assert "alone" in printed.out and "not a plan" not in printed.out + printed.err


def test_a_sequence_is_written_array_by_array(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proto = from_nodes(
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
        ],
        [tensor_info("x", [3])],
        [helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)],
    )
    path, feeds, result = (str(tmp_path / n) for n in ("s.onnx", "in.npz", "out.npz"))
    onnx.save(proto, path)
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    np.savez(feeds, x=x)
    assert call(tmp_path, "run", path, "--inputs", feeds, "--output", result) == 0
    capfd.readouterr()
    found = np.load(result)
    assert np.array_equal(found["s[0]"], x) and np.array_equal(found["s[1]"], np.maximum(x, 0))


def of_type(kind: int, *, fed: bool) -> onnx.ModelProto:
    """A model that returns, or takes, numbers of a type that NumPy does not have."""
    odd, plain = (helper.make_tensor_value_info(n, k, [5]) for n, k in (("x", kind), ("y", 1)))
    if fed:
        z = tensor_info("z", [5])
        nodes = [
            helper.make_node("Cast", ["x"], ["y"], to=1),
            helper.make_node("Neg", ["y"], ["z"]),
        ]
        return from_nodes(nodes, [odd], [plain, z], opset=23)
    odd.name = "b"
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=kind),
        helper.make_node("Cast", ["b"], ["y"], to=1),
    ]
    return from_nodes(nodes, [tensor_info("x", [5])], [plain, odd], opset=23)


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "INT4"])
def test_types_that_numpy_does_not_have(tmp_path: Path, kind: str, fed: bool) -> None:
    path = str(tmp_path / "m.onnx")
    onnx.save(of_type(onnx.TensorProto.DataType.Value(kind), fed=fed), path)
    planned = ("--devices", TWO, "--planner", "heft")
    assert call(tmp_path, "run", path, *planned, "--check") == 0
    assert call(tmp_path, "check", path, *planned) == 0
    assert call(tmp_path, "check", path, *planned, "--tasks") == 0
    assert call(tmp_path, "bench", path, *planned, "--repeats", "2", "--check") == 0


@pytest.mark.filterwarnings("ignore::coexec.errors.AssumedWarning")
def test_a_graph_network_whose_sizes_are_open(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The indices of the nodes at both ends of an edge fit the sizes that coexec assumes."""
    number = onnx.TensorProto.INT64
    node = helper.make_node
    proto = from_nodes(
        [
            node("Gather", ["table", "kinds"], ["embedded"]),
            node("Add", ["x", "embedded"], ["h"]),
            node("Slice", ["edges", "zero", "one", "zero"], ["begins"]),
            node("Squeeze", ["begins", "zero"], ["begin"]),
            node("Gather", ["edges", "second"], ["end"], axis=0),
            node("Gather", ["h", "begin"], ["begun"], axis=0),
            node("MatMul", ["begun", "weights"], ["messages"]),
            node("Shape", ["messages"], ["shape"]),
            node("Unsqueeze", ["end", "one"], ["column"]),
            node("Expand", ["column", "shape"], ["at"]),
            node("ScatterElements", ["h", "at", "messages"], ["summed"], axis=0, reduction="add"),
            node("Gather", ["graphs", "batch"], ["of_graph"]),
            node("Add", ["summed", "of_graph"], ["y"]),
        ],
        [
            tensor_info("x", ["nodes", 4]),
            tensor_info("kinds", ["nodes"], number),
            tensor_info("batch", ["nodes"], number),
            tensor_info("edges", [2, "edge_count"], number),
            tensor_info("graphs", ["graph_count", 4]),
        ],
        [tensor_info("y", ["nodes", 4])],
        {
            "table": np.arange(40, dtype=np.float32).reshape(10, 4) / 40,
            "weights": np.eye(4, dtype=np.float32),
            "zero": np.array([0], np.int64),
            "one": np.array([1], np.int64),
            "second": np.array(1, np.int64),
        },
        opset=18,
    )
    path = str(tmp_path / "graph.onnx")
    onnx.save(proto, path)
    for words in (
        ("run", "--check"),
        ("run", "--check", "--planner", "heft"),
        ("bench", "--repeats", "2"),
        ("check",),
        ("check", "--tasks"),
        ("profile",),
        ("explain",),
        ("report", "--output", str(tmp_path / "report.html")),
    ):
        verb, *options = words
        assert call(tmp_path, verb, path, "--devices", TWO, *options) == 0, capfd.readouterr().err
