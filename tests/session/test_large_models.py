"""Models whose weights lie in files, and models that protobuf cannot encode."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import coexec
from coexec.engines.detect import usable_cores
from coexec.errors import ModelError
from coexec.lowering import entry
from coexec.model import weightless
from coexec.model.read import read
from coexec.model.reference_session import own_session
from coexec.session.model_source import InFiles, in_files, with_values
from tests.helpers.small_models import from_nodes, tensor_info

DEVICES = [f"cpu:{core}" for core in usable_cores()[:2]]
TABLE = np.arange(80, dtype=np.float32).reshape(20, 4)
FEEDS = {"i": np.array([3, 0, 19]), "bias": np.array([2], np.float32)}
EXPECTED = TABLE[FEEDS["i"]] + 2


def looked_up() -> onnx.ModelProto:
    """Rows of a table, and a number added to them."""
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Add", ["rows", "bias"], ["y"]),
    ]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [3])
    inputs, outputs = [i, tensor_info("bias", [1])], [tensor_info("y", [3, 4])]
    return from_nodes(nodes, inputs, outputs, {"table": TABLE})


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The model, with its table in a file beside it."""
    file = str(tmp_path / "m.onnx")
    onnx.save(looked_up(), file, save_as_external_data=True, location="m.bin", size_threshold=0)
    return file


def test_values_leave_weights_in_their_file(path: str, tmp_path: Path) -> None:
    found = in_files(path, {"bias": np.float32([2])})
    assert isinstance(found, InFiles) and found.folder == str(tmp_path)
    assert len(found.content) < TABLE.nbytes
    for words in ({}, {"devices": DEVICES, "planner": "heft"}):
        session = coexec.InferenceSession(
            path, values={"bias": [2.0]}, cache=tmp_path / "cache", **words
        )
        assert [value.name for value in session.get_inputs()] == ["i"]
        np.testing.assert_array_equal(session.run(None, {"i": FEEDS["i"]})[0], EXPECTED)
        session.close()


def test_a_reference_session_copies_no_weights_of_a_file(path: str) -> None:
    session = own_session(read(path), onnxruntime.SessionOptions())
    assert not session.borrowed_weights
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], EXPECTED)


def test_files_in_two_folders_are_read(path: str, tmp_path: Path) -> None:
    model = looked_up()
    other = numpy_helper.from_array(np.ones(300, np.float32), "other")
    model.graph.initializer.append(other)
    model.graph.node.append(helper.make_node("Neg", ["other"], ["z"]))
    model.graph.output.append(tensor_info("z", [300]))
    for tensor, location in zip(model.graph.initializer, ("t.bin", "b/o.bin"), strict=True):
        (tmp_path / location).parent.mkdir(exist_ok=True)
        (tmp_path / location).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    onnx.save(model, path)
    session = own_session(read(path), onnxruntime.SessionOptions())
    assert set(session.borrowed_weights) == {"table", "other"}
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], EXPECTED)


def test_a_table_is_given_to_no_optimizer(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "_TABLE_BYTES", 0)
    model, tables = entry.without_tables(read(path))
    assert list(tables) == ["table"] and not model.graph.initializers
    session = coexec.InferenceSession(
        path, devices=DEVICES, planner="heft", cache=tmp_path / "cache"
    )
    assert session.degraded is None
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], EXPECTED)
    session.close()


def by_values(model: onnx.ModelProto) -> None:
    with_values(model, {"bias": np.float32([2])})


WAYS: dict[str, Any] = {
    "bytes": lambda model: coexec.InferenceSession(model.SerializeToString()),
    "ModelProto": coexec.InferenceSession,
    "values of a ModelProto": by_values,
}


@pytest.mark.parametrize("way", WAYS)
def test_more_than_protobuf_encodes_is_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weightless, "_MOST_BYTES", 100)
    with pytest.raises(ModelError, match=r" B, and protobuf encodes less than 2 GiB .* save"):
        WAYS[way](looked_up())


def test_a_file_larger_than_protobuf_decodes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weightless, "_MOST_BYTES", 100)
    onnx.save(looked_up(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="protobuf encodes less than 2 GiB"):
        coexec.InferenceSession(str(tmp_path / "m.onnx"))
