"""Nodes that draw random numbers stay apart: neither merged nor folded, nor alike in two places."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from coexec.cache import Cache
from coexec.engines.detect import usable_cores
from coexec.engines.onnxruntime.seeds import with_seeds
from coexec.engines.registry import open_devices
from coexec.graph.graph import Piece
from coexec.hardware.hardware import Place
from coexec.model.load import load, restore, save
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from tests.helpers.small_models import from_nodes, tensor_info

node = helper.make_node
TWO = [f"cpu:{core}" for core in usable_cores()[:2]]
DROPPING = {"ratio": np.array(0.5, np.float32), "on": np.array(True)}


def twice(op: str, inputs: list[str], opset: int = 17, **words: Any) -> onnx.ModelProto:
    """The difference of what two equal nodes give, added to x."""
    nodes = [
        node(op, inputs, ["a"], "one", **words),
        node(op, inputs, ["b"], "other", **words),
        node("Cast", ["a"], ["fa"], to=TensorProto.FLOAT),
        node("Cast", ["b"], ["fb"], to=TensorProto.FLOAT),
        node("Sub", ["fa", "fb"], ["d"]),
        node("Mul", ["x", "d"], ["y"]),
    ]
    ends = tensor_info("x", [1, 64]), tensor_info("y", [1, 64])
    return from_nodes(nodes, [ends[0]], [ends[1]], dict(DROPPING), opset)


DRAWING = {
    "RandomNormal": twice("RandomNormal", [], shape=[1, 64]),
    "RandomUniform": twice("RandomUniform", [], shape=[1, 64]),
    "RandomNormalLike": twice("RandomNormalLike", ["x"]),
    "RandomUniformLike": twice("RandomUniformLike", ["x"]),
    "Multinomial": twice("Multinomial", ["x"], sample_size=64),
    "Bernoulli": twice("Bernoulli", ["x"]),
    "Dropout": twice("Dropout", ["x", "ratio", "on"]),
}


@pytest.mark.parametrize("op", DRAWING)
def test_equal_nodes_are_not_merged(op: str) -> None:
    model = load(DRAWING[op], check=True)
    assert len(model.random) == 2  # a Bernoulli is a RandomUniformLike and a comparison


@pytest.mark.parametrize("op", DRAWING)
def test_segments_of_their_own_draw_other_numbers(op: str, cache: Cache) -> None:
    """Each task on another device than the one before: so in `coexec run`."""
    model = load(DRAWING[op])
    devices = open_devices(TWO)
    order: dict[Place, tuple[Piece, ...]] = {device.engine.place: () for device in devices}
    for number, task in enumerate(model.graph.tasks):
        place = devices[number % len(devices)].engine.place
        order[place] = (*order[place], model.graph.whole_piece(task))
    plan = Plan.of_places(model.graph.fingerprint, order, Provenance("by hand"))
    compiled = Compiler(model, cache).compile(derive(plan, model.graph), devices)
    x = np.full((1, 64), 0.5, np.float32)
    with Executor(compiled, devices) as executor:
        first, second = (executor.run({"x": x})["y"].copy() for _ in range(2))
    assert first.any() and not np.array_equal(first, second)


def test_what_draws_inside_of_a_body_or_a_function_is_found(tmp_path: Any) -> None:
    body = helper.make_graph(
        [node("RandomUniformLike", ["x"], ["inner"])], "then", [], [tensor_info("inner", [4])]
    )
    other = helper.make_graph([node("Neg", ["x"], ["o"])], "else", [], [tensor_info("o", [4])])
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["flag"], to=9),
        node("If", ["flag"], ["y"], "choice", then_branch=body, else_branch=other),
        node("RandomNormalLike", ["y"], ["z"], "seeded", seed=3.0),
    ]
    proto = from_nodes(nodes, [tensor_info("x", [4])], [tensor_info("z", [4])])
    model = load(proto)
    assert model.random == ("choice", "seeded")
    cache = Cache(tmp_path)
    save(model, cache)
    entry = cache.find("models", model.digest)
    assert entry is not None
    assert restore(entry, cache, model.digest, "").random == model.random


def test_dropout_that_does_not_train_is_gone() -> None:
    nodes = [
        node("Abs", ["x"], ["r"]),
        node("Dropout", ["r", "ratio"], ["a"]),
        node("Neg", ["a"], ["y"]),
    ]
    ends = tensor_info("x", [4]), tensor_info("y", [4])
    model = load(from_nodes(nodes, [ends[0]], [ends[1]], dict(DROPPING)))
    assert not model.random and [n.op_type for n in model.source.graph] == ["Abs", "Neg"]


def test_seeds_are_given_where_there_are_none() -> None:
    body = helper.make_graph(
        [node("RandomUniform", [], ["inner"], shape=[4])], "then", [], [tensor_info("inner", [4])]
    )
    nodes = [
        node("RandomNormal", [], ["a"], shape=[4]),
        node("RandomNormal", [], ["b"], shape=[4]),
        node("RandomNormal", [], ["c"], shape=[4], seed=7.0),
        node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
    ]
    proto = from_nodes(nodes, [tensor_info("flag", [], 9)], [tensor_info("y", [4])])
    seeded = [onnx.load_from_string(with_seeds(proto.SerializeToString())) for _ in range(2)]

    def seeds(graph: onnx.GraphProto) -> list[float]:
        found = []
        for each in graph.node:
            for attribute in each.attribute:
                found += [attribute.f] if attribute.name == "seed" else []
                found += seeds(attribute.g) if attribute.HasField("g") else []
        return found

    one, other = (seeds(model.graph) for model in seeded)
    assert one[2] == other[2] == 7.0 and len(one) == len(other) == 5
    assert len({*one, *other}) == 9
    plain = from_nodes(
        [node("Neg", ["x"], ["y"])], [tensor_info("x", [4])], [tensor_info("y", [4])]
    )
    assert with_seeds(plain.SerializeToString()) == plain.SerializeToString()


def test_dropout_of_old_has_no_seed() -> None:
    old = from_nodes(
        [node("Dropout", ["x"], ["y"])], [tensor_info("x", [4])], [tensor_info("y", [4])], opset=10
    )
    [kept] = onnx.load_from_string(with_seeds(old.SerializeToString())).graph.node
    assert not kept.attribute
    new = from_nodes(
        [node("Dropout", ["x"], ["y"])], [tensor_info("x", [4])], [tensor_info("y", [4])], opset=12
    )
    [seeded] = onnx.load_from_string(with_seeds(new.SerializeToString())).graph.node
    assert [a.name for a in seeded.attribute] == ["seed"]
