"""Passes by name: their order, the nodes that they make, and what is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.errors import UsageError
from coexec.model.load import load
from coexec.model.pass_steps import pass_steps
from coexec.model.passes import PASSES, Pass, pass_of
from coexec.model.simplify import simplify
from coexec.model.text import text_of
from coexec.selection.opened_model import OpenedModel
from coexec.settings import Settings
from tests.helpers.small_models import from_nodes, tensor_info

node = helper.make_node


def padded() -> onnx.ModelProto:
    """A Pad in front of a convolution, and a product with a computed 1."""
    weights = {
        "w": np.ones((1, 1, 3, 3), np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "half": np.array(0.5, np.float32),
    }
    nodes = [
        node("Pad", ["x", "pads"], ["p"], "pad"),
        node("Conv", ["p", "w"], ["c"], "conv"),
        node("Add", ["half", "half"], ["one"], "sum"),
        node("Mul", ["c", "one"], ["m"], "product"),
        node("Relu", ["m"], ["y"], "relu"),
    ]
    ends = tensor_info("x", [1, 1, 4, 4]), tensor_info("y", [1, 1, 4, 4])
    return from_nodes(nodes, [ends[0]], [ends[1]], weights)


GIVEN = """\
graph small (x: 1x1x4x4)
  p: ? = Pad(x, pads[8])  # pad
  c: ? = Conv(p, w[1x1x3x3])  # conv
  one: ? = Add(0.5, 0.5)  # sum
  m: ? = Mul(c, one)  # product
  y: 1x1x4x4 = Relu(m)  # relu
return y"""
SIMPLIFIED = """\
graph small (x: 1x1x4x4)
  c: 1x1x4x4 = Conv(x, w[1x1x3x3]) {pads=[1, 1, 1, 1]}  # conv; by pad-into-conv
  y: 1x1x4x4 = Relu(c)  # relu
return y"""


def test_a_model_before_and_after_the_passes() -> None:
    model = ir.from_proto(padded())
    assert text_of(model) == GIVEN
    simplify(model)
    assert text_of(model) == SIMPLIFIED


def test_a_node_keeps_the_name_of_its_pass_in_the_cache(tmp_path: Path) -> None:
    for _ in range(2):  # loaded, then restored
        model = OpenedModel(padded().SerializeToString(), {}, Cache(tmp_path)).model
        assert {n.op_type: pass_of(n) for n in model.source.graph} == {
            "Conv": "pad-into-conv",
            "Relu": "",
        }


def test_a_pass_is_watched_before_and_after_it() -> None:
    seen: list[tuple[str, bool, int]] = []

    def watch(each: Pass, model: ir.Model, after: bool) -> None:
        seen.append((each.name, after, len(model.graph)))

    simplify(ir.from_proto(padded()), watch=watch)
    assert [name for name, after, _ in seen if after] == list(PASSES)
    sizes = [(name, a, b) for (name, _, a), (*_, b) in zip(seen[::2], seen[1::2], strict=True)]
    assert [row for row in sizes if row[1] != row[2]] == [
        ("fold-constants", 5, 4),
        ("remove-identities", 4, 3),
        ("pad-into-conv", 3, 2),
    ]


def test_a_pass_that_is_switched_off_changes_nothing() -> None:
    kinds = [n.op_type for n in load(padded(), without=["pad-into-conv"]).source.graph]
    assert kinds == ["Pad", "Conv", "Relu"]
    everything = load(padded(), without=PASSES).source.graph
    assert [n.op_type for n in everything] == [n.op_type for n in padded().graph.node]


def test_the_key_of_a_model_has_the_passes_that_are_off(tmp_path: Path) -> None:
    def digest(*names: str) -> str:
        settings = Settings(without_passes=names, cache=tmp_path)
        return OpenedModel.of(padded(), settings, Cache(tmp_path)).digest

    one, other = "merge-nodes", "fold-constants"
    assert len({digest(), digest(one), digest(other), digest(one, other)}) == 4
    assert digest(one, other) == digest(other, one, one)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["fold-constant"], r"no pass 'fold-constant' \(did you mean 'fold-constants'\?\); the"),
        (["fold-constants", "x"], "no pass 'x'; the passes are inline-functions, fold-constants"),
    ],
)
def test_a_pass_that_is_none_is_named(names: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(padded(), without=names)


@pytest.mark.parametrize("value", ["fold-constants", [1], 3])
def test_names_of_passes_are_a_list_of_texts(value: Any) -> None:
    with pytest.raises(UsageError, match="names no passes; give a list"):
        Settings(without_passes=value)


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_has_a_sentence(name: str) -> None:
    each = PASSES[name]
    assert each.name == name and each.summary.endswith(".") and each.summary[0].isupper()


def test_steps_have_the_model_before_and_after_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: ir.Model) -> None:
        raise ValueError("made to fail")

    failing = Pass("merge-nodes", "Fails.", True, fail)
    monkeypatch.setitem(PASSES, failing.name, failing)
    given = ir.from_proto(padded())
    steps = {step.name: step for step in pass_steps(given, without=["remove-unused"])}
    assert list(steps) == list(PASSES) and text_of(given) == GIVEN
    assert steps["inline-functions"].before == steps["inline-functions"].after == GIVEN
    padding = steps["pad-into-conv"]
    assert "Pad" in padding.before and padding.after == SIMPLIFIED
    assert padding.nodes == (3, 2) and padding.made == 1
    reasons = {name: step.left_out for name, step in steps.items() if step.left_out}
    assert reasons == {
        "merge-nodes": "the pass 'merge-nodes' failed: made to fail",
        "remove-unused": "switched off",
    }
