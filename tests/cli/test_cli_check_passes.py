"""`coexec check --passes`: a pass that the test registers is named when it changes results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from coexec.cli import main
from coexec.cli.exits import CHECK_FAILED, DONE
from coexec.model.passes import PASSES, Pass
from tests.helpers.small_models import from_nodes, tensor_info
from tests.model.test_passes import padded

node = helper.make_node
Captured = pytest.CaptureFixture[str]
Register = Callable[[Callable[[ir.Model], None]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Registers a pass with the name "new", as the last one."""

    def registered(rewrite: Callable[[ir.Model], None]) -> None:
        monkeypatch.setitem(PASSES, "new", Pass("new", "Is under test.", True, rewrite))

    return registered


def limited() -> onnx.ModelProto:
    """The Min changes only what is larger than 50."""
    nodes = [
        node("Relu", ["x"], ["h"], "relu"),
        node("Min", ["h", "most"], ["m"], "limit"),
        node("Sqrt", ["m"], ["y"], "root"),
    ]
    ends = tensor_info("x", [4]), tensor_info("y", [4])
    return from_nodes(nodes, [ends[0]], [ends[1]], {"most": np.array(50, np.float32)})


def without_limit(model: ir.Model) -> None:
    for each in model.graph:
        if each.op_type == "Min":
            each.op_type = "Max"
            each.replace_input_with(1, each.inputs[0])


def words(folder: Path, proto: onnx.ModelProto) -> list[str]:
    onnx.save(proto, str(folder / "model.onnx"))
    return ["check", str(folder / "model.onnx"), "--cache", str(folder / "cache"), "--passes"]


def document(capfd: Captured) -> Any:
    return json.loads(capfd.readouterr().out)


def test_no_pass_is_wrong(tmp_path: Path, capfd: Captured) -> None:
    check = words(tmp_path, padded())
    assert main([*check, "--json", "--without", "merge-nodes"]) == DONE
    found = document(capfd)
    assert list(found["passes"]) == ["(no pass)", *PASSES] and found["first"] is None
    verdicts = {name: row["verdict"] for name, row in found["passes"].items()}
    assert verdicts.pop("merge-nodes") == "left out" and set(verdicts.values()) == {"equal"}
    assert main(check) == DONE
    assert "no pass changes what the model computes" in capfd.readouterr().out


def test_the_pass_and_its_node_are_named(
    tmp_path: Path, capfd: Captured, register: Register
) -> None:
    """The inputs are those of the user: made-up ones, with which a model is loaded, are small."""
    register(without_limit)
    check = words(tmp_path, limited())
    assert main(check) == DONE
    np.savez(tmp_path / "x.npz", x=np.array([1, 49, 51, 90], np.float32))
    check += ["--inputs", str(tmp_path / "x.npz")]
    capfd.readouterr()
    assert main([*check, "--json"]) == CHECK_FAILED
    found = document(capfd)
    assert found["first"]["pass"] == "new" and found["first"]["output"] == "y"
    assert found["first"]["nodes"] == ["m: 4 = Max(h, h)  # limit; by new"]
    assert {row["verdict"] for row in list(found["passes"].values())[:-1]} == {"equal"}
    assert main(check) == CHECK_FAILED
    said = capfd.readouterr()
    assert "node: m: 4 = Max(h, h)  # limit; by new" in said.out
    (line,) = said.err.splitlines()
    assert "with the pass 'new' the output 'y' differs" in line and "--without new" in line
    assert main([*check, "--without", "new"]) == DONE


def test_other_float_values_show_a_pass_that_is_wrong(tmp_path: Path, register: Register) -> None:
    register(without_limit)
    check = words(tmp_path, limited())
    assert main(check) == DONE
    assert main([*check, "--probe", "large"]) == CHECK_FAILED


def test_a_model_that_runs_no_more_is_the_fault_of_its_pass(
    tmp_path: Path, capfd: Captured, register: Register
) -> None:
    def break_it(model: ir.Model) -> None:
        for each in model.graph:
            each.op_type = "NoSuchOperator" if each.op_type == "Sqrt" else each.op_type

    check = words(tmp_path, limited())
    assert main(check) == DONE  # loaded without the pass
    register(break_it)
    capfd.readouterr()
    assert main([*check, "--json"]) == CHECK_FAILED
    first = document(capfd)["first"]
    assert first["pass"] == "new" and "ONNX Runtime does not run the model" in first["reason"]


def test_a_pass_that_fails_is_left_out(tmp_path: Path, capfd: Captured, register: Register) -> None:
    def fail(model: ir.Model) -> None:
        raise ValueError("made to fail")

    register(fail)
    assert main([*words(tmp_path, limited()), "--json"]) == DONE
    row = document(capfd)["passes"]["new"]
    assert row["verdict"] == "left out" and "made to fail" in row["reason"]
