"""`coexec profile --train`, and what a profile says where nothing was trained."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli import main
from coexec.engines.detect import usable_cores
from tests.helpers.needs_opencl import opencl_name
from tests.helpers.small_models import branches, from_nodes, tensor_info


@pytest.mark.long
def test_training_and_what_is_said_without(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, on = str(tmp_path / "model.onnx"), ["--devices", "null:0", "--cache", str(tmp_path)]
    onnx.save(branches(), model)
    remedy = "coexec profile --train --devices null:0/null trains one"
    assert main(["profile", model, *on]) == 0
    assert remedy in " ".join(capfd.readouterr().out.split())
    assert main(["profile", "--train", "--samples", "40", "--json", *on]) == 0
    assert "Conv" in json.loads(capfd.readouterr().out)["predictors"]["null:0/null"]
    assert main(["profile", model, *on]) == 0
    assert remedy not in " ".join(capfd.readouterr().out.split())


def test_parts_of_tasks_are_measured_once_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, on = str(tmp_path / "model.onnx"), ["--devices", "null:0", "--cache", str(tmp_path)]
    onnx.save(branches(), model)
    assert main(["profile", model, *on]) == 0
    assert "parts of tasks measured" not in capfd.readouterr().out
    assert main(["profile", model, *on, "--pieces"]) == 0
    assert "parts of tasks measured" in capfd.readouterr().out
    assert main(["profile", model, *on, "--json"]) == 0
    known = json.loads(capfd.readouterr().out)["pieces_s"]["null:0/null"]
    assert known and all(seconds > 0.0 for seconds in known.values())
    assert main(["profile", model, *on, "--pieces", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["pieces_s"]["null:0/null"] == known


@pytest.mark.long
def test_changes_of_layout_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime and OpenCL have 18 channels in blocks that are not filled, however wide."""
    core, *others = usable_cores()
    if not others:
        pytest.skip("needs two cores")
    nodes = [helper.make_node("Conv", [x, w], [y]) for x, w, y in ("xwa", "avb")]
    weights = {"w": np.ones((18, 16, 1, 1), np.float32), "v": np.ones((16, 18, 1, 1), np.float32)}
    ends = [tensor_info(name, [1, 16, 8, 8]) for name in "xb"]
    model = str(tmp_path / "model.onnx")
    onnx.save(from_nodes(nodes, ends[:1], ends[1:], weights), model)
    on = ["--devices", f"cpu:{core},{opencl_name()}", "--cache", str(tmp_path)]
    assert main(["profile", model, *on, "--json"]) == 0
    changes = json.loads(capfd.readouterr().out)["layout_changes"]
    ways = {(c["source"], c["target"]) for c in changes}
    assert {(f"cpu:{core}/onnxruntime", opencl_name()), (opencl_name(), opencl_name())} <= ways
    assert all(c["tensors"] == ["a"] and c["byte_s"] >= 0.0 for c in changes)
    assert main(["profile", model, *on]) == 0
    assert "tensors that change their layout: 1" in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["model.onnx", "--train"], "leave the model out"),
        ([], "name a model"),
        (["--train", "--samples", "0"], "--samples 0"),
    ],
)
def test_bad_words(words: list[str], reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *words]) != 0
    assert reason in capfd.readouterr().err
