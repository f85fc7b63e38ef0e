"""Fusions count where they compute the same as what they replace."""

import dataclasses
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from coexec.model import fusions, replacement_check
from coexec.model.load import load
from coexec.model.passes import PASSES
from coexec.model.reference_session import plain_session
from coexec.model.replacement_check import differing_row, hostile
from coexec.model.replacing import Replacement
from tests.helpers.small_models import from_nodes, tensor_info

node = helper.make_node
RNG = np.random.default_rng(0)


def weights_of(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    found = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return found | {"v": np.abs(RNG.standard_normal(shapes["v"])).astype(np.float32)}


def normalised(op: str, opset: int = 17, training: int = 0, **attributes: Any) -> onnx.ModelProto:
    """x -> op with weights -> BatchNormalization -> Relu -> y."""
    shape = {"Conv": (6, 2, 3, 3), "ConvTranspose": (4, 3, 2, 2), "Gemm": (8, 6)}[op]
    weights = weights_of(w=shape, b=(6,), s=(6,), t=(6,), m=(6,), v=(6,))
    words = {"training_mode": 1} if training else {}
    outputs = ["n", "rm", "rv"] if training else ["n"]
    nodes = [
        node(op, ["x", "w", "b"], ["c"], "op", **attributes),
        node("BatchNormalization", ["c", *"stmv"], outputs, "bn", **words),
        node("Relu", ["n"], ["y"], "relu"),
    ]
    sizes: list[int | str] = [2, 8] if op == "Gemm" else [2, 4, 7, 7]
    out = tensor_info("y", [2, 6] if op == "Gemm" else list("abcd"))
    return from_nodes(nodes, [tensor_info("x", sizes)], [out], weights, opset)


def kinds(proto: onnx.ModelProto, check: bool = True) -> Counter[str]:
    """Operators of the simplified model, after comparing it on hostile inputs."""
    loaded = load(proto, check=check)
    session, own = plain_session(proto), plain_session(ir.to_proto(loaded.source))
    shape = session.get_inputs()[0].shape
    for rows in np.split(hostile((12, *shape[1:]), np.dtype(np.float32)), 12 // shape[0]):
        expected, found = (s.run(None, {"x": rows})[0] for s in (session, own))
        assert differing_row(found, expected) is None
    return Counter(n.op_type for n in loaded.source.graph)


@pytest.mark.parametrize("opset", [9, 13, 15, 21])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Conv", {"group": 2, "pads": [1] * 4}),
        ("Conv", {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("ConvTranspose", {"group": 2, "strides": [2, 2]}),
        ("Gemm", {"alpha": 0.5, "beta": 2.0}),
    ],
)
def test_normalisation_scales_weights(op: str, attributes: dict[str, Any], opset: int) -> None:
    assert kinds(normalised(op, opset, **attributes)) == {op: 1, "Relu": 1}


def test_normalisation_that_trains_stays() -> None:
    proto = normalised("Conv", 15, training=1, group=2)
    assert Counter(n.op_type for n in load(proto, check=True).source.graph)["BatchNormalization"]


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize("filling", [0.0, -0.0, 1.0])
def test_zeros_around_the_input_of_a_convolution(opset: int, filling: float) -> None:
    weights = weights_of(w=(6, 4, 3, 3), v=(1,))
    pads = [0, 0, 1, 0, 0, 0, 2, 1]
    if opset < 11:
        pad = node("Pad", ["x"], ["p"], "pad", pads=pads, value=filling)
    else:
        weights |= {"pads": np.array(pads, np.int64), "f": np.array(filling, np.float32)}
        pad = node("Pad", ["x", "pads", "f"], ["p"], "pad")
    nodes = [pad, node("Conv", ["p", "w"], ["y"], "conv", pads=[1, 0, 0, 0])]
    proto = from_nodes(
        nodes, [tensor_info("x", [2, 4, 7, 7])], [tensor_info("y", list("abcd"))], weights, opset
    )
    zero = filling == 0 and not np.signbit(filling)
    assert kinds(proto) == ({"Conv": 1} if zero else {"Pad": 1, "Conv": 1})


def swish(numbers: dict[str, float], opset: int = 17) -> onnx.ModelProto:
    given = {"three": 3.0, "zero": 0.0, "six": 6.0, "last": 6.0} | numbers
    nodes = [
        node("Add", ["x", "three"], ["a"]),
        node("Clip", ["a", "zero", "six"], ["c"]),
        node("Mul", ["x", "c"], ["m"]),
        node("Div", ["m", "last"], ["y"]),
    ]
    weights = {name: np.array(number, np.float32) for name, number in given.items()}
    ends = tensor_info("x", [2, 5]), tensor_info("y", [2, 5])
    return from_nodes(nodes, [ends[0]], [ends[1]], weights, opset)


def test_hard_swish_with_its_own_numbers_alone() -> None:
    assert kinds(swish({})) == {"HardSwish": 1}
    assert kinds(swish({}, opset=13))["HardSwish"] == 0
    for name, number in (("three", 3 + 1e-5), ("six", 6 - 1e-5), ("last", 6 + 1e-5)):
        assert kinds(swish({name: number}))["HardSwish"] == 0


@pytest.mark.parametrize("harm", ["a wrong attribute", "a crash", "an operator that is none"])
def test_a_use_that_differs_is_left_out_alone(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two normalisations, the one that is made wrong stays; the other is folded."""
    calls: list[str] = []
    folding = PASSES["norm-into-weights"]
    rule = fusions.FUSIONS[folding.name]["BatchNormalization"]

    def harmed(bn: ir.Node) -> Replacement | ir.Value | None:
        found = rule(bn)
        calls.append(bn.name or "")
        if bn.name != "second" or not isinstance(found, Replacement):
            return found
        if harm == "a crash":
            raise KeyError("made to fail")
        op_type = "NoSuchOperator" if harm == "an operator that is none" else found.op_type
        attributes = {"strides": ir.AttrInt64s("strides", [2, 2])}
        return Replacement(op_type, found.inputs, attributes, found.covers, found.samples)

    rewrite = partial(fusions.fuse, rules={"BatchNormalization": harmed})
    monkeypatch.setitem(PASSES, folding.name, dataclasses.replace(folding, rewrite=rewrite))
    weights = weights_of(w=(4, 4, 1, 1), s=(4,), t=(4,), m=(4,), v=(4,))
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("BatchNormalization", ["a", *"stmv"], ["b"], "first"),
        node("Conv", ["b", "w"], ["c"]),
        node("BatchNormalization", ["c", *"stmv"], ["y"], "second"),
    ]
    ends = tensor_info("x", [2, 4, 3, 3]), tensor_info("y", [2, 4, 3, 3])
    found = kinds(from_nodes(nodes, [ends[0]], [ends[1]], weights))
    assert "second" in calls and found == {"Conv": 2, "BatchNormalization": 1}


def test_normalisation_is_folded_where_the_model_takes_no_made_up_inputs() -> None:
    weights = weights_of(w=(4, 4, 1, 1), s=(4,), t=(4,), m=(4,), v=(4,))
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("BatchNormalization", ["a", *"stmv"], ["b"]),
        node("Reshape", ["b", "shape"], ["y"]),
    ]
    inputs = [tensor_info("x", [2, 4, 3, 3]), tensor_info("shape", [2], 7)]
    with pytest.warns(match="was not compared"):
        loaded = load(
            from_nodes(nodes, inputs, [tensor_info("y", list("ab"))], weights), check=True
        )
    assert Counter(n.op_type for n in loaded.source.graph) == {"Conv": 1, "Reshape": 1}


def test_rows_are_compared_each_by_its_own_scale() -> None:
    expected = hostile((12, 50), np.dtype(np.float32))
    assert replacement_check.differing_row(expected.copy(), expected) is None
    for row, change in ((0, 1e-3), (4, 1e-21), (6, np.inf), (10, np.inf)):
        found = expected.copy()
        found[row, 25] = found[row, 25] + change if row < 6 else change
        assert replacement_check.differing_row(found, expected) == row
