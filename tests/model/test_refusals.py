"""Whatever comes as a model: it runs, or one line says why not."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.engines.detect import usable_cores
from coexec.errors import CoexecError, ModelError, ModelWarning
from coexec.model.digest import digest_of
from coexec.model.load import load
from tests.helpers.small_models import branches, from_nodes, tensor_info

CPU = f"cpu:{usable_cores()[0]}"
node = helper.make_node


def one_line(proto: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(proto, check=True)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_dimension_of_minus_one_is_dynamic(tmp_path: Path) -> None:
    proto = from_nodes(
        [node("Relu", ["x"], ["y"])], [tensor_info("x", [-1, 3])], [tensor_info("y", [-1, 3])]
    )
    assert "dynamic shape" in one_line(proto) and "--shape x=1,3" in one_line(proto)
    assert load(proto, shapes={"x": (2, 3)}).graph.tensors["y"].shape == (2, 3)


def sparse(indices: np.ndarray, dims: list[int], values: int = 2) -> onnx.ModelProto:
    """x plus a sparse weight of shape ``dims``."""
    numbers = np.arange(1, values + 1, dtype=np.float32)
    proto = from_nodes(
        [node("Add", ["x", "w"], ["y"])], [tensor_info("x", [3, 4])], [tensor_info("y", [3, 4])]
    )
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            onnx.numpy_helper.from_array(numbers, "w"),
            onnx.numpy_helper.from_array(indices, "indices"),
            dims,
        )
    )
    return proto


def as_constant(indices: np.ndarray) -> onnx.ModelProto:
    weight = sparse(indices, [3, 4]).graph.sparse_initializer[0]
    nodes = [node("Constant", [], ["w"], sparse_value=weight), node("Add", ["x", "w"], ["y"])]
    return from_nodes(nodes, [tensor_info("x", [3, 4])], [tensor_info("y", [3, 4])])


@pytest.mark.parametrize("indices", [[1, 11], [[0, 1], [2, 3]]])
@pytest.mark.parametrize("make", [lambda at: sparse(at, [3, 4]), as_constant])
def test_sparse_weights_are_made_dense(make: Any, indices: list) -> None:
    proto = make(np.array(indices, np.int64))
    given = proto.SerializeToString()
    weights = load(proto, check=True).source.graph.initializers.values()
    (dense,) = (t.const_value.numpy() for t in weights if t.const_value is not None)
    assert dense.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2]]
    assert proto.SerializeToString() == given  # the caller's model is not changed


@pytest.mark.parametrize(
    ("indices", "dims"),
    [([1, 12], [3, 4]), ([-1, 2], [3, 4]), ([1], [3, 4]), ([1, 2], [2**40, 4]), ([1, 2], [-3, 4])],
)
def test_damaged_sparse_weights(indices: list, dims: list) -> None:
    text = one_line(sparse(np.array(indices, np.int64), dims))
    assert f"the sparse weight 'w' of shape {dims} cannot be made dense" in text


def test_tensors_larger_than_any_memory() -> None:
    for size in (2**40, 2**28):
        x, y = tensor_info("x", [size, 2**30]), tensor_info("y", [size, 2**30])
        text = one_line(from_nodes([node("Relu", ["x"], ["y"])], [x], [y]))
        assert "smaller shapes" in text


def test_tensors_of_another_rank_than_the_operator_has() -> None:
    x, y = tensor_info("x", []), tensor_info("y", [3, 3])
    weights = {"w": np.ones((3, 3), np.float32)}
    proto = from_nodes([node("Gemm", ["x", "w"], ["y"])], [x], [y], weights)
    assert "ONNX Runtime does not run the model" in one_line(proto)
    proto = from_nodes([node("Relu", ["x"], ["y"])], [tensor_info("x", [3], 0)], [y])
    assert "Invalid tensor data type 0" in one_line(proto)


def test_names_with_line_breaks() -> None:
    proto = from_nodes(
        [node("Relu", ["a\nb"], ["y"])], [tensor_info("a\nb", ["n"])], [tensor_info("y", ["n"])]
    )
    assert "--shape 'a\\nb'=1" in one_line(proto)
    proto = from_nodes([node("Re\nlu", ["x"], ["y"])], [tensor_info("x", [1])], [])
    proto.graph.output.append(tensor_info("y", [1]))
    assert "ONNX Runtime does not run the model" in one_line(proto)


def test_inputs_without_a_type() -> None:
    proto = from_nodes(
        [node("Relu", ["x"], ["y"])], [onnx.ValueInfoProto(name="x")], [tensor_info("y", [3])]
    )
    assert "input 'x' has the dynamic shape None" in one_line(proto)
    with pytest.raises(ModelError, match=r"Model input \(x\) does not have type information"):
        load(proto, shapes={"x": (3,)})


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, "", tmp_path / "none"):
        with pytest.raises(ModelError, match="cannot read the model") as caught:
            load(path)
        assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(ModelError, match="cannot read the model"):
            digest_of(path, {}, {})


def test_texts_and_numbers_that_are_none() -> None:
    for old, new in ((b"MaxPool", b"Max\xffool"), (b"joined", b"joine\xff")):
        assert "is no text in UTF-8" in one_line(BYTES.replace(old, new))
    proto = branches()
    proto.opset_import[0].version = 2**40
    assert "of version 1099511627776 of domain ''" in one_line(proto)
    proto = branches()
    proto.graph.initializer[0].dims[0] = 5
    assert "weight 'stem.w' of shape [5,3,3,3] does not hold" in one_line(proto)


BYTES = branches(width=1, channels=2, size=4).SerializeToString()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_garbled_models(data: st.DataObject) -> None:
    """Cut off anywhere, or with some bytes changed: a model, or one line."""
    content = bytearray(BYTES)
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(content))


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x00" * 64)
@example(b"\x08\x07:\x00")
def test_bytes_that_are_no_model(content: bytes) -> None:
    check(content)


def check(content: bytes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            load(content)
    except CoexecError as error:
        assert len(str(error).splitlines()) == 1
