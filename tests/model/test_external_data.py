"""Weights in files beside the model: found wherever the process stands, and never outside."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import coexec
from coexec.engines.detect import usable_cores
from coexec.errors import ModelError
from coexec.model.load import load
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings
from tests.helpers.small_models import tensor_info

CPU = f"cpu:{usable_cores()[0]}"
WEIGHT = np.arange(600, dtype=np.float32).reshape(1, 600)
X = np.ones((1, 600), np.float32)


def external(tensor: onnx.TensorProto, **entries: object) -> onnx.TensorProto:
    """The tensor with its values in the file that the entries name."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write(folder: Path, location: str = "w.bin", data: bytes | None = None, **entries: int) -> Path:
    """A model of one addition whose weight lies in ``location``, and that file if it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    weight = external(numpy_helper.from_array(WEIGHT, "w"), location=location, **entries)
    add = helper.make_node("Add", ["x", "w"], ["y"], "add")
    graph = helper.make_graph(
        [add], "g", [tensor_info("x", [1, 600])], [tensor_info("y", [1, 600])], [weight]
    )
    opset = [helper.make_opsetid("", 17)]
    path = folder / "m.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    if data is not None:
        (folder / location).write_bytes(data)
    return path


def result(path: Path, cache: Path) -> np.ndarray:
    with coexec.InferenceSession(path, devices=CPU, planner="single", cache=cache) as session:
        found: np.ndarray = session.run(None, {"x": X})[0]
    return found


def test_the_working_folder_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model", data=WEIGHT.tobytes())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "w.bin").write_bytes((WEIGHT * -3).tobytes())  # of that name, with other values
    monkeypatch.chdir(elsewhere)
    assert np.array_equal(result(path, tmp_path / "cache"), X + WEIGHT)
    work = PlanningContext(path, Settings(devices=[CPU], cache=tmp_path / "cache"))
    assert np.array_equal(work.user_model.reference({"x": X})["y"], X + WEIGHT)


def test_the_cache_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tmp_path / "hub" / "models--org--name"
    snapshot, blobs = hub / "snapshots" / "0123abc" / "onnx", hub / "blobs"
    model = write(tmp_path / "export", "model.onnx_data")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "aa11").write_bytes(model.read_bytes())
    (blobs / "bb22").write_bytes(WEIGHT.tobytes())
    up = Path("../../../blobs")
    (snapshot / "model.onnx").symlink_to(up / "aa11")
    (snapshot / "model.onnx_data").symlink_to(up / "bb22")
    monkeypatch.chdir(tmp_path)
    found = result(Path(os.path.relpath(snapshot / "model.onnx")), tmp_path / "cache")
    assert np.array_equal(found, X + WEIGHT)
    (snapshot / "model.onnx_data").unlink()
    (tmp_path / "hub" / "token").write_bytes(WEIGHT.tobytes())
    (snapshot / "model.onnx_data").symlink_to(tmp_path / "hub" / "token")
    with pytest.raises(ModelError, match=r"'model.onnx_data', a link to .*token', outside of"):
        load(snapshot / "model.onnx")


def test_a_model_named_by_a_link_and_a_link_inside_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "model")
    (tmp_path / "model" / "v2").mkdir()
    (tmp_path / "model" / "v2" / "real.bin").write_bytes(WEIGHT.tobytes())
    (tmp_path / "model" / "w.bin").symlink_to("v2/real.bin")
    (tmp_path / "current.onnx").symlink_to(path)
    assert np.array_equal(result(tmp_path / "current.onnx", tmp_path / "cache"), X + WEIGHT)


def test_a_hard_link_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(WEIGHT.tobytes())
    path = write(tmp_path / "model")
    os.link(tmp_path / "store", tmp_path / "model" / "w.bin")
    assert np.array_equal(result(path, tmp_path / "cache"), X + WEIGHT)


def test_values_at_an_odd_offset(tmp_path: Path) -> None:
    path = write(tmp_path / "model", data=b"abc" + WEIGHT.tobytes(), offset=3)
    assert np.array_equal(result(path, tmp_path / "cache"), X + WEIGHT)


def test_constants_in_bodies_are_read_from_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(name: str, factor: int) -> onnx.GraphProto:
        tensor = numpy_helper.from_array(WEIGHT, f"{name}.w")
        (tmp_path / f"{name}.bin").write_bytes((WEIGHT * factor).tobytes())
        constant = helper.make_node(
            "Constant", [], [f"{name}.c"], value=external(tensor, location=f"{name}.bin")
        )
        stored = external(numpy_helper.from_array(WEIGHT, f"{name}.i"), location=f"{name}.bin")
        add = helper.make_node("Add", [f"{name}.c", f"{name}.i"], [f"{name}.y"])
        out = [tensor_info(f"{name}.y", [1, 600])]
        return helper.make_graph([constant, add], name, [], out, [stored])

    node = helper.make_node("If", ["c"], ["y"], then_branch=body("a", 1), else_branch=body("b", 5))
    graph = helper.make_graph(
        [node], "g", [tensor_info("c", [], onnx.TensorProto.BOOL)], [tensor_info("y", [1, 600])]
    )
    path = tmp_path / "m.onnx"
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(proto.SerializeToString())
    monkeypatch.chdir("/")
    words = {"devices": CPU, "planner": "single", "cache": tmp_path / "cache"}
    with coexec.InferenceSession(path, **words) as session:
        for given, factor in ((True, 2), (False, 10)):
            found = session.run(None, {"c": np.array(given)})[0]
            assert np.array_equal(found, WEIGHT * factor)


def _link(target: str) -> Callable[[Path], None]:
    return lambda file: file.symlink_to(target)


@pytest.mark.parametrize(
    ("location", "make", "message"),
    [
        ("/etc/passwd", None, "outside of the model's folder"),
        ("../secret", None, "outside of the model's folder"),
        ("sub/../../secret", None, "outside of the model's folder"),
        (r"..\secret", None, "outside of the model's folder"),
        (r"C:\secret", None, "outside of the model's folder"),
        ("", None, "outside of the model's folder"),
        ("w.bin", _link("/etc/passwd"), "a link to '/etc/passwd', outside of"),
        ("w.bin", _link("../secret"), "a link to .*secret', outside of"),
        ("w.bin", _link("w.bin"), "not there"),
        ("w.bin", _link("/dev/zero"), "a link to '/dev/zero', outside of"),
        ("w.bin", _link("nowhere"), "not there"),
        ("w.bin", os.mkfifo, "not a regular file"),
        ("w.bin", Path.mkdir, "not a regular file"),
        ("w.bin", None, "which is missing"),
        (".", None, "outside of the model's folder"),
        ("*/_ORT_MEM_ADDR_/*", None, "outside of the model's folder"),
    ],
)
def test_files_that_a_model_may_not_name(
    location: str, make: Callable[[Path], None] | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    path = write(tmp_path / "model", location)
    if make is not None:
        make(tmp_path / "model" / location)
    with pytest.raises(ModelError, match=message) as caught:
        load(path, check=True)
    assert len(str(caught.value).splitlines()) == 1 and "'w'" in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": -4}, "offset .*-4"),
        ({"offset": 4}, "needs 2404 bytes .* only 2400 bytes"),
        ({"offset": 2**63}, "only 2400 bytes"),
        ({"offset": 2**200}, "only 2400 bytes"),
        ({"length": -1}, "length .*-1"),
        ({"length": 2**64}, f"offset 0 and length {2**64}"),
        ({"length": 4}, "offset 0 and length 4 in"),
    ],
)
def test_parts_of_files_that_are_not_there(entries: dict, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, data=WEIGHT.tobytes(), **entries)
    with pytest.raises(ModelError, match=message) as caught:
        load(path, check=True)
    assert len(str(caught.value).splitlines()) == 1


def test_a_model_without_a_folder_has_no_files(tmp_path: Path) -> None:
    path = write(tmp_path, data=WEIGHT.tobytes())
    for given in (path.read_bytes(), onnx.load(str(path), load_external_data=False)):
        with pytest.raises(ModelError, match="load it from its path"):
            load(given)
