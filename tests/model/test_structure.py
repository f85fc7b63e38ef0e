"""Is a model sound? What ONNX Runtime runs passes; what would harm an engine does not."""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from coexec.errors import ModelError
from coexec.model import messages
from coexec.model.structure import check_structure
from coexec.model.weightless import hollow
from tests.helpers.small_models import branches, from_nodes, tensor_info

node = helper.make_node
X, Y = tensor_info("x", [3]), tensor_info("y", [3])
C = tensor_info("c", [], TensorProto.BOOL)
ONES = {"w": np.ones(3, np.float32)}


def add() -> onnx.ModelProto:
    return from_nodes([node("Add", ["x", "w"], ["y"], "add")], [X], [Y], ONES)


def functions(*bodies: tuple[str, list[str]]) -> onnx.ModelProto:
    """A model that calls the last function; each calls the ones that are named, one by one."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    proto = from_nodes([node(bodies[-1][0], ["x"], ["y"], domain="f")], [X], [Y])
    proto.opset_import.append(imports[1])
    for name, calls in bodies:
        names = ["a", *(f"h{i}" for i in range(len(calls))), "b"]
        nodes = [
            node(call, [names[i]], [names[i + 1]], domain="" if call == "Neg" else "f")
            for i, call in enumerate(calls)
        ]
        nodes.append(node("Neg", [names[len(calls)]], ["b"]))
        proto.functions.append(helper.make_function("f", name, ["a"], ["b"], nodes, imports))
    return proto


def nested(depth: int) -> onnx.ModelProto:
    """An If in an If in an If."""
    body = helper.make_graph([node("Neg", ["x"], ["r"])], "body", [], [tensor_info("r", [3])])
    for i in range(depth):
        outer = onnx.GraphProto(name="body", output=[tensor_info(f"r{i}", [3])])
        chosen = outer.node.add(op_type="If", input=["c"], output=[f"r{i}"])
        other = helper.make_graph(
            [node("Relu", ["x"], [f"e{i}"])], "other", [], [tensor_info(f"e{i}", [3])]
        )
        for name, inner in (("then_branch", body), ("else_branch", other)):
            chosen.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g.CopyFrom(inner)
        body = outer
    proto = from_nodes([], [C, X], [tensor_info(body.output[0].name, [3])])
    proto.graph.node.extend(body.node)
    return proto


def damaged(**fields: Any) -> onnx.ModelProto:
    """The addition with a weight that has other ``fields``."""
    proto = add()
    weight = proto.graph.initializer[0]
    for name, value in fields.items():
        if isinstance(value, list):
            weight.ClearField(name)
            getattr(weight, name).extend(value)
        elif value is None:
            weight.ClearField(name)
        else:
            setattr(weight, name, value)
    return proto


def body_that(reads: str) -> onnx.ModelProto:
    """An If whose branches read a value."""
    branch = [
        helper.make_graph([node("Neg", [reads], [name])], name, [], [tensor_info(name, [3])])
        for name in ("t", "e")
    ]
    chosen = node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])
    return from_nodes([chosen, node("Relu", ["x"], ["later"])], [C, X], [Y])


def circle() -> onnx.ModelProto:
    nodes = [node("Neg", ["b"], ["a"]), node("Neg", ["a"], ["b"]), node("Relu", ["x"], ["y"])]
    return from_nodes(nodes, [X], [Y])


UNSOUND = {
    "nothing": (onnx.ModelProto(ir_version=8), "it has no graph"),
    "circle": (circle(), "nodes that wait for each other in a circle: Neg '' before Neg ''"),
    "own result": (body_that("y"), "wait for each other in a circle"),
    "lost": (body_that("z"), "'Neg' node '' reads 'z', which is no input or weight"),
    "made twice": (
        from_nodes([node("Relu", ["x"], ["y"])] * 2, [X], [Y]), "computes 'y' twice"),
    "no output": (from_nodes([node("Relu", ["x"], ["q"])], [X], [Y]), "the output 'y', which noth"),
    "too many dims": (damaged(dims=[4]), "shape \\[4\\] does not hold .* 12 bytes, 16 are needed"),
    "no values": (damaged(raw_data=None), "0 values, 3 are needed"),
    "other values": (damaged(raw_data=None, int64_data=[1, 2, 3]), "0 values, 3 are needed"),
    "half values": (damaged(raw_data=None, data_type=22, dims=[3], int32_data=[1]), "1 values, 2"),
    "below zero": (damaged(dims=[-3]), "does not hold"),
    "no type": (damaged(data_type=0), "type 0 does not hold"),
    "new type": (damaged(data_type=999), "type 999 does not hold"),
    "folder": (damaged(data_location=1), "given as an object without a folder"),
    "itself": (functions(("A", ["A"])), "functions that call themselves: 'A' calls 'A'"),
    "each other": (functions(("A", ["B"]), ("B", ["A"])), "call themselves"),
    "bomb": (functions(("A0", []), *((f"A{i}", [f"A{i - 1}"] * 2) for i in range(1, 30))),
             "nodes with functions in the place of their calls"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNSOUND)
def test_unsound_models(kind: str, tmp_path: Path) -> None:
    proto, message = UNSOUND[kind]
    sources = [proto, proto.SerializeToString()]
    if kind != "folder":
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        sources.append(tmp_path / "m.onnx")
    for source in sources:
        with pytest.raises(ModelError, match=message) as caught:
            check_structure(source)
        assert len(str(caught.value).splitlines()) == 1


def test_bodies_nested_too_deeply() -> None:
    check_structure(nested(30))
    check_structure(nested(30).SerializeToString())
    for depth in (40, 400):
        with pytest.raises(ModelError, match="messages deep, 100 are possible"):
            check_structure(nested(depth))
        with pytest.raises(ModelError, match="cannot be decoded"):
            check_structure(nested(depth).SerializeToString())


def strings() -> onnx.ModelProto:
    text = TensorProto.STRING
    nodes = [node("Equal", ["x", "w"], ["y"])]
    outputs = [tensor_info("y", [2], TensorProto.BOOL)]
    weights = {"w": np.array(["a", "b"], object)}
    return from_nodes(nodes, [tensor_info("x", [2], text)], outputs, weights, opset=19)


def sequences() -> onnx.ModelProto:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    return from_nodes(nodes, [X], [tensor_info("y", [6])])


def unused(**fields: Any) -> onnx.ModelProto:
    proto = damaged(**fields)
    proto.graph.node[0].input[1] = "x"
    return proto


def repeated_opset() -> onnx.ModelProto:
    proto = add()
    proto.opset_import.append(helper.make_opsetid("", 13))
    return proto


X_FED = {"x": np.array([1, -2, 3], np.float32)}
C_FED = X_FED | {"c": np.array(True)}
SOUND: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {
    "unsorted": (
        from_nodes([node("Neg", ["h"], ["y"]), node("Relu", ["x"], ["h"])], [X], [Y]), X_FED),
    "twice": (from_nodes([node("Relu", ["x"], ["y"])], [X], [Y, X, Y]), X_FED),
    "no nodes": (from_nodes([], [X], [X]), X_FED),
    "default": (from_nodes([node("Add", ["x", "w"], ["y"])], [X, tensor_info("w", [3])], [Y],
                           ONES), X_FED),
    "later": (body_that("later"), C_FED),
    "function": (functions(("A", ["Neg"]), ("B", ["A", "A"])), X_FED),
    "chain": (functions(("A0", []), *((f"A{i}", [f"A{i - 1}"]) for i in range(1, 100))), X_FED),
    "strings": (strings(), {"x": np.array(["a", "c"], object)}),
    "sequences": (sequences(), X_FED),
    "com.microsoft": (from_nodes([node("Gelu", ["x"], ["y"], domain="com.microsoft")], [X], [Y]),
                      X_FED),
    "unused and empty": (unused(raw_data=None), X_FED),
    "opset twice": (repeated_opset(), X_FED),
    "typed values": (damaged(raw_data=None, float_data=[1.0, 2.0, 3.0]), X_FED),
    "both values": (damaged(float_data=[1.0]), X_FED),
    "nested": (nested(30), C_FED),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOUND)
def test_what_onnx_runtime_runs_passes(kind: str, tmp_path: Path) -> None:
    proto, feeds = SOUND[kind]
    content = proto.SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    ort.InferenceSession(content, options).run(None, feeds)
    (tmp_path / "m.onnx").write_bytes(content)
    for source in (proto, content, tmp_path / "m.onnx"):
        check_structure(source)


@pytest.mark.parametrize("kind", ["INT4", "UINT8", "FLOAT16", "DOUBLE", "COMPLEX64", "BOOL"])
@pytest.mark.parametrize("raw", [True, False])
def test_values_of_every_size(kind: str, raw: bool) -> None:
    """As ONNX itself writes them; one byte or value less is refused."""
    number = TensorProto.DataType.Value(kind)
    tensor = helper.make_tensor("w", number, [5], np.arange(5))
    if raw:
        array = onnx.numpy_helper.to_array(tensor)
        tensor = onnx.numpy_helper.from_array(array, "w")
    proto = from_nodes([node("Identity", ["w"], ["y"])], [], [onnx.ValueInfoProto(name="y")])
    proto.graph.initializer.append(tensor)
    check_structure(proto)
    weight = proto.graph.initializer[0]
    if raw:
        weight.raw_data = weight.raw_data[:-1]
    else:
        weight.dims[0] = 7
    with pytest.raises(ModelError, match="does not hold what it should"):
        check_structure(proto)


def test_imports_nothing_heavy() -> None:
    words = (
        "import sys; from coexec.model.structure import check_structure; "
        "print([m for m in ('onnx', 'onnx_ir', 'onnxscript', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


WHOLE = branches(width=1, channels=2, size=4).SerializeToString()


def with_texts() -> onnx.ModelProto:
    """A model that has a "text" wherever ONNX has a place for one, in graph, body and function."""
    proto = body_that("later")
    proto.functions.append(
        helper.make_function(
            "text",
            "text",
            ["text"],
            ["text"],
            [node("text", ["text"], ["text"], "text")],
            [],
            doc_string="text",
        )
    )
    for graph in (proto.graph, proto.graph.node[0].attribute[0].g):
        graph.doc_string = graph.node[0].doc_string = "text"
        graph.input.add(name="text", doc_string="text").type.tensor_type.shape.dim.add(
            dim_param="text"
        )
        graph.initializer.add(name="text", string_data=[b"text"])
        graph.initializer[0].external_data.add(key="text", value="text")
        graph.metadata_props.add(key="text", value="text")
    proto.producer_name = proto.domain = "text"
    proto.metadata_props.add(key="text", value="text")
    return proto


def test_the_messages_are_those_of_onnx() -> None:
    """Also where ``onnx`` is imported after them."""
    words = (
        "from coexec.model import messages; import onnx; "
        "print(messages.ModelProto is onnx.ModelProto, messages.TensorProto is onnx.TensorProto)"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    assert messages.ModelProto is onnx.ModelProto


def test_every_text_is_utf8() -> None:
    """Bytes of strings need not be; a text that is not UTF-8 is refused wherever it stands."""
    content = with_texts().SerializeToString()
    places = [i for i in range(len(content)) if content.startswith(b"text", i)]
    passed = 0
    for place in places:
        try:
            check_structure(content[:place] + b"\xff" + content[place + 1 :])
            passed += 1
        except ModelError as error:
            assert r"b'\xffext' is no text in UTF-8" in str(error)
    assert passed == 2 < len(places)  # the strings of two weights


@settings(max_examples=200, deadline=None)
@given(
    large_bytes=st.sampled_from([0, 40, 200]),
    cut=st.integers(0, len(WHOLE)),
    changes=st.dictionaries(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), max_size=3),
)
def test_leaving_weights_out_changes_nothing_else(
    large_bytes: int, cut: int, changes: dict[int, int]
) -> None:
    """Whatever bytes: both decode to the same, or neither does."""
    content = bytearray(WHOLE)
    for place, byte in changes.items():
        content[place] = byte
    content = content[: cut if cut % 2 else len(content)]
    small = hollow(memoryview(content), large_bytes)
    try:
        proto = onnx.load_model_from_string(bytes(content))
    except DecodeError:
        with pytest.raises(DecodeError):
            onnx.load_model_from_string(small.content)
        return
    if small.raw is None:
        assert small.content == content
        return
    decoded = onnx.load_model_from_string(small.content)
    for kept, raw, whole in zip(
        decoded.graph.initializer, small.raw, proto.graph.initializer, strict=True
    ):
        assert raw is not None or whole.ByteSize() < large_bytes or not whole.HasField("raw_data")
        if raw is not None:
            assert content[raw] == whole.raw_data and not kept.HasField("raw_data")
            kept.raw_data = whole.raw_data
    assert decoded.SerializeToString() == proto.SerializeToString()


def test_weights_are_not_read(tmp_path: Path) -> None:
    weights = {"w": np.zeros(2**24, np.float32)}
    proto = from_nodes([node("Identity", ["w"], ["y"])], [], [tensor_info("y", [2**24])], weights)
    onnx.save(proto, str(tmp_path / "m.onnx"))
    tracemalloc.start()
    check_structure(tmp_path / "m.onnx")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**20
