"""Rules that hold bit by bit, and conditions under which they do not apply."""

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from coexec.model import identities
from coexec.model.load import load
from coexec.model.passes import PASSES
from coexec.model.reference_session import plain_session
from tests.helpers.small_models import from_nodes, tensor_info

X = np.array(
    [[math.nan, math.inf, -math.inf, -0.0], [0.0, 1e-45, -3.5, 2.0], [1e38, -1e-30, 7, -1]],
    np.float32,
)
node = helper.make_node


def f32(*values: float) -> np.ndarray:
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def i64(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def built(nodes: list, weights: dict[str, np.ndarray], opset: int = 17) -> onnx.ModelProto:
    """x -> Neg -> h -> nodes -> last -> Neg -> y; x has three rows and four columns."""
    return from_nodes(
        [node("Neg", ["x"], ["h"], "first"), *nodes, node("Neg", ["last"], ["y"], "end")],
        [tensor_info("x", [3, 4])],
        [onnx.ValueInfoProto(name="y")],
        weights,
        opset,
    )


def kinds(proto: onnx.ModelProto, check: bool = False) -> Counter[str]:
    """Operators of the simplified model, after making sure that it gives the same, bit by bit."""
    loaded = load(proto, check=check)
    expected = plain_session(proto, optimised=False).run(None, {"x": X})
    found = plain_session(ir.to_proto(loaded.source), optimised=False).run(None, {"x": X})
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.tobytes() == b.tobytes()
    return Counter(n.op_type for n in loaded.source.graph if n.op_type != "Neg")


def binary(op: str, constant: np.ndarray, swapped: bool = False) -> onnx.ModelProto:
    inputs = ["c", "h"] if swapped else ["h", "c"]
    return built([node(op, inputs, ["last"], "it")], {"c": constant})


VANISHING = {
    "times 1": binary("Mul", f32(1)),
    "1 times": binary("Mul", f32(1, 1, 1, 1), swapped=True),
    "by 1": binary("Div", f32(1)),
    "minus 0": binary("Sub", f32(0)),
    "plus -0": binary("Add", f32(-0.0)),
    "Relu": built([node("Relu", ["h"], ["r"]), node("Relu", ["r"], ["last"])], {}),
    "Slice": built([node("Slice", ["h", "s", "e", "a"], ["last"])],
                   {"s": i64([0]), "e": i64([2**62]), "a": i64([1])}),
    "Transposes": built([node("Transpose", ["h"], ["t"]), node("Transpose", ["t"], ["last"])], {}),
    "Reshapes": built([node("Flatten", ["h"], ["t"], axis=0), node("Unsqueeze", ["t", "a"], ["u"]),
                       node("Reshape", ["u", "s"], ["last"])], {"a": i64([1]), "s": i64([3, -1])}),
    "Dropout": built([node("Dropout", ["h"], ["last"], ratio=0.4)], {}, 10),
    "Scatter": built([node("Relu", ["h"], ["r"]), node("ScatterND", ["h", "i", "r"], ["last"])],
                     {"i": i64([[0], [1], [2]])}),
}  # fmt: skip


@pytest.mark.parametrize("name", VANISHING)
def test_what_changes_nothing_vanishes(name: str) -> None:
    left = 1 if name in ("Relu", "Scatter") else 0
    assert kinds(VANISHING[name]).total() == left


STAYING = {
    "a tiny addend": binary("Add", f32(1e-10)),
    "plus 0": binary("Add", f32(0)),
    "minus -0": binary("Sub", f32(-0.0)),
    "a factor near 1": binary("Mul", f32(1 + 1e-6)),
    "a divisor near 1": binary("Div", f32(1 - 1e-6)),
    "1 divided": binary("Div", f32(1), swapped=True),
    "a wider constant": binary("Mul", np.ones((2, 3, 4), np.float32)),
    "adding rows": built([node("ScatterND", ["h", "i", "h"], ["last"], reduction="add")],
                         {"i": i64([[0], [1], [2]])}, 18),
    "other rows": built([node("Relu", ["h"], ["r"]), node("ScatterND", ["h", "i", "r"], ["last"])],
                        {"i": i64([[0], [2], [1]])}),
    "backwards": built([node("Slice", ["h", "s", "e", "a", "t"], ["last"])],
                       {"s": i64([-1]), "e": i64([-9]), "a": i64([1]), "t": i64([-1])}),
    "one Transpose": built([node("Transpose", ["h"], ["last"], perm=[1, 0])], {}),
    "limits": built([node("Max", ["h", "l"], ["m"]), node("Min", ["m", "u"], ["last"])],
                    {"l": f32(-0.5), "u": f32(0.5)}, 9),
    "a Relu of limits": built([node("Clip", ["h", "l", "u"], ["c"]), node("Relu", ["c"], ["last"])],
                              {"l": f32(-3), "u": f32(-1)}),
    "a Gemm without a bias": built([node("Gemm", ["h", "w", "b"], ["last"])],
                                   {"w": np.eye(4, dtype=np.float32), "b": np.zeros(4, np.float32)},
                                   9),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYING)
def test_what_may_change_something_stays(name: str) -> None:
    proto = STAYING[name]
    assert kinds(proto, check=True) == Counter(n.op_type for n in proto.graph.node[1:-1])


def test_a_rule_that_fails_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: ir.Node) -> None:
        raise ValueError("made to fail")

    monkeypatch.setitem(identities.IDENTITIES, "Mul", fail)
    nodes = [node("Mul", ["h", "c"], ["m"]), node("Sub", ["m", "z"], ["last"])]
    assert kinds(built(nodes, {"c": f32(1), "z": f32(0)}), check=True) == {"Mul": 1}


@pytest.mark.parametrize("harm", ["fails", "is wrong"])
def test_a_pass_that_fails_or_is_wrong_is_left_out_alone(
    harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def harmful(model: ir.Model) -> None:
        for n in model.graph:
            n.op_type = "Abs" if n.op_type == "Neg" else n.op_type
        if harm == "fails":
            raise ValueError("made to fail")

    merging = dataclasses.replace(PASSES["merge-constants"], rewrite=harmful)
    monkeypatch.setitem(PASSES, merging.name, merging)
    assert kinds(VANISHING["times 1"], check=True).total() == 0


def test_a_proto_of_the_user_is_not_changed() -> None:
    for proto in (*VANISHING.values(), *STAYING.values()):
        content = proto.SerializeToString(deterministic=True)
        load(proto, check=True)
        assert proto.SerializeToString(deterministic=True) == content


def test_constants_are_those_of_onnx_runtime() -> None:
    """Also where ONNX's reference and ONNX Runtime differ, or round in other ways."""
    weights = {"v": f32(math.nan, -0.0, 1e-30, 4), "lo": f32(0), "hi": f32(3)}
    nodes = [
        node("Clip", ["v", "lo", "hi"], ["a"]),
        node("Sigmoid", ["a"], ["b"]),
        node("Exp", ["b"], ["c"]),
        node("Mul", ["h", "c"], ["last"]),
    ]
    assert kinds(built(nodes, weights)) == {"Mul": 1}
