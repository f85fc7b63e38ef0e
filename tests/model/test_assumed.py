"""Sizes that a model leaves open: found by running it, and spelled in one way."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from coexec.cache import Cache
from coexec.errors import AssumedWarning, InputError, ModelError
from coexec.model.assumed import assumed_shapes
from coexec.model.declared import Declared, canonical
from coexec.model.fixed import fix
from coexec.model.load import load
from coexec.selection.user_model import UserModel

Dims = list[int | str | None]


def model(
    nodes: list[tuple[str, list[str]]],
    inputs: dict[str, Dims],
    weights: dict[str, np.ndarray] | None = None,
    integer: str = "",
) -> ModelProto:
    """A chain of nodes, of which the last makes the output; ``integer`` names an input of int64."""
    made = [
        helper.make_node(kind, names, [f"t{i}"], f"n{i}") for i, (kind, names) in enumerate(nodes)
    ]
    shown = [
        helper.make_tensor_value_info(
            n, TensorProto.INT64 if n == integer else TensorProto.FLOAT, dims
        )
        for n, dims in inputs.items()
    ]
    out = helper.make_tensor_value_info(f"t{len(nodes) - 1}", TensorProto.FLOAT, None)
    arrays = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(made, "g", shown, [out], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def found(proto: ModelProto) -> dict[str, tuple[int, ...]]:
    return assumed_shapes(ir.from_proto(proto))


def test_images_batches_and_channels() -> None:
    images: dict[str, Dims] = {"x": ["N", 3, "H", "W"]}
    assert found(model([("Relu", ["x"])], images)) == {"x": (1, 3, 224, 224)}
    last: dict[str, Dims] = {"x": [None, None, None, 3]}
    assert found(model([("Relu", ["x"])], last)) == {"x": (1, 224, 224, 3)}
    sound: dict[str, Dims] = {"x": ["any", 43844, 1]}
    assert found(model([("Relu", ["x"])], sound)) == {"x": (1, 43844, 1)}
    assert found(model([("Relu", ["x"])], {"x": [2, 3]})) == {}


def test_n_is_a_batch_on_the_first_axis_and_a_length_on_another() -> None:
    assert found(model([("Relu", ["x"])], {"x": ["N", 3]})) == {"x": (1, 3)}
    wave = found(model([("Relu", ["x"])], {"x": ["batch_size", "N"]}))["x"]
    assert wave[0] == 1 and wave[1] > 1


@pytest.mark.parametrize(
    ("key", "text", "size"),
    [
        ("imgsz", "[320, 320]", (320, 320)),
        ("imgsz", "[480, 640]", (480, 640)),
        ("image_size", "192", (192, 192)),
        ("input_shape", "(1, 3, 96, 160)", (96, 160)),
        ("imgsz", "[320, 320, 320]", (224, 224)),
        ("imgsz", "[0, 99999]", (224, 224)),
        ("imgsz", "sys.exit()", (224, 224)),
        ("names", "{0: 320}", (224, 224)),
    ],
)
def test_metadata_that_has_the_size_of_images(key: str, text: str, size: tuple[int, int]) -> None:
    proto = model([("Relu", ["x"])], {"x": ["batch", 3, "height", "width"]})
    helper.set_model_props(proto, {key: text})
    assert found(proto) == {"x": (1, 3, *size)}


def test_a_side_that_metadata_calls_square() -> None:
    proto = model([("Relu", ["x"])], {"x": [1, 3, "side", "side"]})
    helper.set_model_props(proto, {"imgsz": "[480, 640]"})
    assert found(proto) == {"x": (1, 3, 224, 224)}  # one size for both: the metadata does not fit


def test_a_size_that_the_model_contains() -> None:
    """An embedding of 59 positions fits sequences of as many."""
    rows = np.ones((1, 59, 8), np.float32)
    proto = model([("Add", ["x", "p"])], {"x": ["batch", "length", 8]}, {"p": rows})
    assert found(proto) == {"x": (1, 59, 8)}


def test_the_state_of_a_recurrent_network_has_a_batch() -> None:
    inputs: dict[str, Dims] = {"x": [None, None], "state": [2, None, 128]}
    shapes = found(model([("Relu", ["x"]), ("Relu", ["state"])], inputs))
    assert shapes["state"] == (2, 1, 128) and shapes["x"][1] > 1
    sequence: dict[str, Dims] = {"x": [1, None, 128]}
    assert found(model([("Relu", ["x"])], sequence))["x"][1] > 1


@pytest.mark.parametrize("name", ["sr", "sample_rate", "SamplingRate"])
def test_a_number_that_selects_the_rate_of_sound(name: str) -> None:
    """The model runs at 16000 samples a second only: a Reshape needs as many elements."""
    numbers = {"one": np.ones(1, np.int64), "second": np.ones((1, 16000), np.float32)}
    nodes = [("Mul", [name, "one"]), ("Reshape", ["second", "t0"]), ("Relu", ["x"])]
    proto = model(nodes, {"x": ["batch", 8], name: []}, numbers, integer=name)
    assert found(proto) == {"x": (1, 8)}


def test_sizes_run_at_the_rate_of_the_made_up_inputs() -> None:
    """At other rates the model takes rows of 128, and would not run with them afterwards."""
    numbers = {"rate": np.full(1, 16000, np.int64), "rows": np.array([128, 16], np.int64)}
    nodes = [("Div", ["sr", "rate"]), ("Gather", ["rows", "t0"]), ("Expand", ["x", "t1"])]
    proto = model(nodes, {"x": [160, None], "sr": []}, numbers, integer="sr")
    shapes = found(proto)
    assert shapes == {"x": (160, 16)}
    made_up = load(proto, shapes=shapes).candidates()
    assert [int(feeds["sr"]) for feeds in made_up] == [16000] * 4


def test_equal_names_and_sums() -> None:
    inputs: dict[str, Dims] = {"x": [1, "past"], "y": [1, "length"], "z": [1, "past + length"]}
    proto = model([("Relu", ["x"]), ("Relu", ["y"]), ("Relu", ["z"])], inputs)
    shapes = found(proto)
    assert shapes["z"][1] == shapes["x"][1] + shapes["y"][1]


def test_what_never_runs_is_asked_for_in_one_message() -> None:
    weight = np.ones((70_001, 2), np.float32)
    proto = model([("MatMul", ["x", "w"])], {"x": [1, "wide"], "y": ["n", 3]}, {"w": weight})
    with pytest.raises(ModelError) as error:
        found(proto)
    assert "'x'" in str(error.value) and "'y'" in str(error.value)
    assert "--inputs" in str(error.value) and "\n" not in str(error.value)
    assert "--shape x=1,N --shape y=N,3 with numbers for N" in str(error.value)


DIMS = st.lists(st.sampled_from([2, 3, "N", "M", None]), min_size=1, max_size=3)


@given(st.dictionaries(st.sampled_from("ab"), DIMS, min_size=1), st.data())
def test_one_spelling_fixes_the_same(declared: Declared, data: st.DataObject) -> None:
    sizes = {"N": 4, "M": 5}
    shapes: dict[str, tuple[int, ...] | int] = {}
    for name, dims in declared.items():
        if data.draw(st.booleans()):
            shapes[name] = tuple(
                sizes.get(d, 6) if not isinstance(d, int) else d for d in dims or ()
            )
    for symbol, size in sizes.items():
        known = any(symbol in (dims or ()) for dims in declared.values())
        if known and data.draw(st.booleans()):
            shapes[symbol] = size
    proto = model(
        [("Relu", [name]) for name in declared], {n: list(d or ()) for n, d in declared.items()}
    )

    def fixed(given: dict[str, tuple[int, ...] | int]) -> dict[str, object]:
        parsed = ir.from_proto(proto)
        fix(parsed, given, all_known=False)
        return {v.name or "": str(v.shape) for v in parsed.graph.inputs}

    once = canonical(shapes, declared)
    assert fixed(once) == fixed(shapes)
    assert canonical(once, declared) == once


def test_equal_shapes_are_one_model(tmp_path: object) -> None:
    cache = Cache(str(tmp_path))
    content = model([("Relu", ["x"])], {"x": ["N", 3]}).SerializeToString()
    digests = {
        UserModel(content, shapes, cache).digest
        for shapes in ({"N": 4}, {"x": (4, 3)}, {"x": (4, 3), "N": 4})
    }
    assert len(digests) == 1
    assert UserModel(content, {"N": 5}, cache).digest not in digests


def test_assumed_once_and_said(tmp_path: object) -> None:
    cache = Cache(str(tmp_path))
    content = model([("Relu", ["x"])], {"x": ["N", 3, "H", "W"]}).SerializeToString()
    for _ in range(2):
        with pytest.warns(AssumedWarning, match="--shape x=1,3,224,224"):
            assert UserModel(content, {}, cache, assume=True).shapes == {"x": (1, 3, 224, 224)}


def test_examples_fix_shapes_and_are_checked(tmp_path: object) -> None:
    cache = Cache(str(tmp_path))
    content = model([("Relu", ["x"])], {"x": ["N", 3]}).SerializeToString()
    given_model = UserModel(content, {}, cache, examples={"x": np.ones((7, 3), np.float32)})
    assert next(given_model.model.candidates())["x"].shape == (7, 3)
    wrong = UserModel(content, {"N": 1}, cache, examples={"y": np.ones((7, 3), np.float32)})
    with pytest.raises(InputError, match="is missing"):
        _ = wrong.model
