"""Inputs and outputs as ONNX Runtime takes them: in any order, twice, named, replaced, fixed."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import coexec
from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.errors import ModelError, UsageError
from coexec.model import main_memory
from coexec.model.load import load
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings
from tests.helpers.examples import scaled
from tests.helpers.small_models import from_nodes, tensor_info

node = helper.make_node
CPU = f"cpu:{usable_cores()[0]}"
UNARY, BINARY = ("Relu", "Neg", "Identity", "Tanh"), ("Add", "Mul", "Sub")


def onnx_runtime(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    found: list[np.ndarray] = ort.InferenceSession(proto.SerializeToString(), options).run(
        None, feeds
    )
    return found


def network(rng: random.Random) -> onnx.ModelProto:
    """A few operators on [N, 4] in any order; outputs are any values, some of them twice."""
    values = ["x0", "x1", "w0", "w1"]
    nodes = []
    for i in range(rng.randrange(7)):
        kind = rng.choice(UNARY + BINARY)
        reads = [rng.choice(values) for _ in range(1 + (kind in BINARY))]
        nodes.append(node(kind, reads, [f"h{i}"], f"n{i}"))
        values.append(f"h{i}")
    rng.shuffle(nodes)
    outputs = [rng.choice(values) for _ in range(rng.randrange(1, 5))]
    unknown = rng.choice(["N", "?", -1, "", None])
    inputs = [tensor_info(name, [unknown, 4]) for name in ("x0", "x1")]
    weights = {f"w{i}": np.full((1, 4), i + 1.5, np.float32) for i in range(2)}
    if rng.random() < 0.5:
        inputs.append(tensor_info("w1", [1, 4]))  # a default
    return from_nodes(nodes, inputs, [onnx.ValueInfoProto(name=n) for n in outputs], weights)


@settings(
    max_examples=scaled(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 10**6), size=st.integers(0, 3))
def test_any_order_of_nodes_and_any_outputs(seed: int, size: int, cache: Cache) -> None:
    proto = network(random.Random(seed))
    numbers = np.random.default_rng(seed)
    feeds = {n: numbers.standard_normal((size, 4)).astype(np.float32) for n in ("x0", "x1")}
    expected = onnx_runtime(proto, feeds)
    words: dict[str, Any] = {"devices": CPU, "planner": "single", "cache": cache}
    with coexec.InferenceSession(proto, shapes={n: (size, 4) for n in feeds}, **words) as session:
        assert [o.name for o in session.get_outputs()] == [o.name for o in proto.graph.output]
        found = session.run(None, feeds)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and np.allclose(a, b, atol=1e-6)
        assert not any(np.shares_memory(a, fed) for fed in feeds.values())


RELU = [node("Relu", ["x"], ["y"], "relu")]


def test_outputs_listed_twice_are_computed_once() -> None:
    x, y = tensor_info("x", [3]), tensor_info("y", [3])
    graph = load(from_nodes(RELU, [x], [y, x, y]), check=True).graph
    assert graph.outputs == ("y", "x", "y") and [t.kind for t in graph.tasks] == ["Relu"]


@pytest.mark.parametrize(("version", "names"), [(3, set()), (8, {"w"})])
def test_weights_that_a_feed_may_replace_are_known_from_the_cache_too(
    version: int, names: set[str], tmp_path: Path
) -> None:
    inputs = [tensor_info("x", [3]), tensor_info("w", [3])]
    weights = {"w": np.ones(3, np.float32), "v": np.ones(3, np.float32)}
    nodes = [node("Add", ["x", "w"], ["h"]), node("Mul", ["h", "v"], ["y"])]
    proto = from_nodes(nodes, inputs, [tensor_info("y", [3])], weights, opset=8)
    proto.ir_version = version
    for _ in range(2):
        model = PlanningContext(proto, Settings(devices=[CPU], cache=tmp_path)).model
        assert model.overridable == names and model.graph.inputs == ("x",)


def test_a_named_dimension_is_fixed_once() -> None:
    inputs = [tensor_info("a", ["N", "L"]), tensor_info("b", ["N", 1]), tensor_info("N", ["L"])]
    nodes = [node("Add", ["a", "b"], ["h"]), node("Add", ["h", "N"], ["y"])]
    proto = from_nodes(nodes, inputs, [tensor_info("y", ["N", "L"])])

    def shape(**shapes: Any) -> tuple[int, ...]:
        return load(proto, shapes=shapes).graph.tensors["y"].shape

    assert shape(a=(2, 5)) == (2, 5)  # tells both
    assert shape(b=(2, 1), L=5) == (2, 5)
    assert shape(b=(2, 1), N=5) == (2, 5)  # the input of that name, which has one axis
    assert shape(b=(0, 1), L=5) == (0, 5)
    with pytest.raises(ModelError, match=r"--shape a=1,5 --shape b=1,1 .*--shape N=1$"):
        shape(L=5)
    with pytest.raises(UsageError, match=r"'Q', but .* 'a', 'b', 'N' and its dimensions 'N', 'L'"):
        shape(Q=5)
    for wrong in ({"L": (5,)}, {"L": -1}):
        with pytest.raises(UsageError, match="a dimension has one size, as in --shape N=1"):
            shape(**wrong)


@pytest.mark.parametrize(
    ("dims", "example"),
    [
        ([-1, 3, "?", "?"], "1,3,224,224"),
        ([None, None, None, None], "1,3,224,224"),
        (["n", "h", "w", 3], "1,224,224,3"),
        ([1, 1, "h", "w"], "1,1,224,224"),
        ([1, 3, 32, "w"], "1,3,32,224"),
        (["n", "length"], "1,1"),
        (["n", 7, "length"], "1,7,1"),
    ],
)
def test_a_shape_is_suggested_that_can_run(dims: list, example: str) -> None:
    proto = from_nodes(RELU, [tensor_info("x", dims)], [onnx.ValueInfoProto(name="y")])
    with pytest.raises(ModelError, match=f"--shape x={example} "):
        load(proto)


def choice() -> onnx.ModelProto:
    """Relu of x if sr is 16000, else -x."""
    then = helper.make_graph([node("Relu", ["x"], ["t"])], "then", [], [tensor_info("t", [4])])
    other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [tensor_info("e", [4])])
    nodes = [
        node("Equal", ["sr", "k"], ["c"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    inputs = [tensor_info("x", [4]), tensor_info("sr", [], TensorProto.INT64)]
    return from_nodes(nodes, inputs, [tensor_info("y", [4])], {"k": np.array(16000)})


def test_a_fixed_value_folds_an_if(tmp_path: Path) -> None:
    x = np.array([-1, 0, 1, 2], np.float32)
    keys = set()
    for sr, kind in ((16000, "Relu"), (8000, "Neg")):
        words: dict[str, Any] = {"devices": [CPU], "planner": "single", "cache": tmp_path}
        work = PlanningContext(choice(), Settings(values={"sr": sr}, **words))
        assert [t.kind for t in work.graph.tasks] == [kind] and work.graph.inputs == ("x",)
        keys.add(work.user_model.digest)
        with work.start(work.prepared_by("single", {})) as executor:
            expected = onnx_runtime(choice(), {"x": x, "sr": np.array(sr)})[0]
            assert np.array_equal(executor.run({"x": x})["y"], expected)
        assert np.array_equal(work.user_model.reference({"x": x})["y"], expected)
    assert len(keys) == 2


def test_values_are_cast_and_broadcast() -> None:
    inputs = [tensor_info("x", [2, 3]), tensor_info("w", ["N", 3], TensorProto.FLOAT16)]
    nodes = [node("Cast", ["w"], ["c"], to=1), node("Add", ["x", "c"], ["y"])]
    proto = from_nodes(nodes, inputs, [tensor_info("y", [2, 3])])
    for value, shape in ((1, (1, 3)), ([1, 2, 3], (1, 3)), ([[1], [2]], (2, 3))):
        model = load(proto, values={"w": value})
        (weight,) = model.source.graph.initializers.values()
        assert weight.const_value is not None
        array = weight.const_value.numpy()
        assert np.array_equal(np.broadcast_to(array, shape), np.broadcast_to(value, shape))
    for wrong, message in (
        ([[[1]]], "it has 3 axes"),
        ([1, 2], "broadcast"),
        ("text", "it is no number"),
    ):
        with pytest.raises(UsageError, match=message):
            load(proto, values={"w": wrong})
    with pytest.raises(UsageError, match="int64 has no such number"):
        load(choice(), values={"sr": 1.5})
    with pytest.raises(UsageError, match="'q', but the model's inputs are 'x', 'sr'"):
        load(choice(), values={"q": 1})


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_a_size_at_which_the_model_does_not_work(size: int) -> None:
    weights = {f"w{i}": np.ones((3, 3, 3, 3), np.float32) for i in range(2)}
    nodes = [node("Conv", ["x", "w0"], ["h"], strides=[2, 2]), node("Conv", ["h", "w1"], ["y"])]
    proto = from_nodes(
        nodes, [tensor_info("x", [1, 3, "H", "W"])], [tensor_info("y", [1, 3, "a", "b"])], weights
    )
    if size == 8:  # the smallest
        assert load(proto, shapes={"H": 7, "W": size}, check=True).graph.tensors["y"].size_bytes
        return
    message = f"does not work with --shape H={size} --shape W={size}: .*; give it other sizes"
    with pytest.raises(ModelError, match=message):
        load(proto, shapes={"H": size, "W": size}, check=True)


def huge(*nodes: onnx.NodeProto, **weights: Any) -> onnx.ModelProto:
    """x plus the sum of "h", which ``nodes`` compute of constants."""
    last = [node("ReduceSum", ["h"], ["r"], keepdims=0), node("Add", ["x", "r"], ["y"])]
    stored = {name: np.asarray(value) for name, value in weights.items()}
    inputs, outputs = [tensor_info("x", [3])], [tensor_info("y", [3])]
    return from_nodes([*nodes, *last], inputs, outputs, stored)


BOTH = np.array([2**18, 2**18])
ONE = np.ones((1, 1), np.float32)
LINE = np.ones(8000, np.float32)
HUGE = {
    "ConstantOfShape": huge(node("ConstantOfShape", ["s"], ["h"]), s=BOTH),
    "Expand": huge(node("Expand", ["w", "s"], ["h"]), w=ONE, s=BOTH),
    "Tile": huge(node("Tile", ["w", "s"], ["h"]), w=ONE, s=BOTH),
    "Pad": huge(node("Pad", ["w", "s"], ["h"]), w=ONE, s=np.array([0, 0, 2**18, 2**18])),
    "Range": huge(node("Range", ["a", "b", "c"], ["i"]), node("Cast", ["i"], ["h"], to=1),
                  a=np.array(0), b=np.array(2**36), c=np.array(1)),
    "broadcasting": huge(node("Sum", ["a", "b", "c"], ["h"]), a=LINE.reshape(-1, 1, 1),
                         b=LINE.reshape(-1, 1), c=LINE),
    "a computed shape": huge(node("Mul", ["s", "s"], ["t"]), node("Expand", ["w", "t"], ["h"]),
                             w=ONE, s=np.array([2**9, 2**9])),
    "a chain": huge(*(node("Concat", [f"q{i}"] * 8, [f"q{i + 1}"], axis=0) for i in range(11)),
                    node("Cast", ["q11"], ["h"], to=1), q0=np.array([1, 2])),
}  # fmt: skip


@pytest.mark.parametrize("kind", HUGE)
def test_constants_larger_than_memory_are_not_computed(kind: str) -> None:
    with pytest.raises(ModelError, match=r"needs at least .* GiB of memory, and this machine has"):
        load(HUGE[kind])


def test_shapes_larger_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = from_nodes(RELU, [tensor_info("x", ["N"])], [tensor_info("y", ["N"])])
    monkeypatch.setattr(main_memory, "main_memory_bytes", lambda: 8 * 2**20)
    assert load(proto, shapes={"N": 2**20}).graph.tasks
    with pytest.raises(ModelError, match=r"at least 8.00 MiB of memory, and this machine has 8.00"):
        load(proto, shapes={"N": 2**20 + 1})
    with pytest.raises(ModelError, match="the value of 'x' needs at least"):
        load(
            from_nodes(RELU, [tensor_info("x", [2**30])], [tensor_info("y", [2**30])]),
            values={"x": 1},
        )
