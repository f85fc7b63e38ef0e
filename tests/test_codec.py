"""The codec: values that are read as they were written, and errors that name the place."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.codec import CodecError, decode, encode, without_nan
from coexec.hardware.hardware import Device
from tests.helpers.examples import scaled


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Box(NamedTuple):
    start: tuple[int, ...]
    stop: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    box: Box
    pair: tuple[str, float] = ("", 0.0)


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    by_name: Mapping[str, Leaf]
    kind: Literal["leader", "neighbours", 3]
    colour: Colour
    bound_s: float | None = None
    size: int | tuple[int, ...] = 0
    flag: bool = False
    names: frozenset[str] = frozenset()
    content: bytes = b""
    options: Mapping[str, Any] = field(default_factory=dict)


NUMBERS = st.floats(allow_nan=False)
SHAPES = st.lists(st.integers(), max_size=3).map(tuple)
LEAVES = st.builds(
    Leaf,
    st.text(max_size=3),
    st.builds(Box, SHAPES, SHAPES),
    st.tuples(st.text(max_size=2), NUMBERS),
)
TREES = st.builds(
    Tree,
    st.lists(LEAVES, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), LEAVES, max_size=2),
    st.sampled_from(["leader", "neighbours", 3]),
    st.sampled_from(Colour),
    st.none() | NUMBERS,
    st.integers() | SHAPES,
    st.booleans(),
    st.frozensets(st.text(max_size=2), max_size=3),
    st.binary(max_size=4),
    st.dictionaries(st.text(max_size=2), st.none() | st.integers() | st.lists(st.booleans())),
)


@given(TREES)
@settings(max_examples=scaled(100))
def test_a_value_is_read_as_it_was_written(tree: Tree) -> None:
    assert decode(Tree, json.loads(json.dumps(encode(tree)))) == tree


TREE = encode(
    Tree((Leaf("a", Box((0,), (2,))),), {"b": Leaf("b", Box((), ()))}, "leader", Colour.RED)
)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), 3, "3 is not an object with leaves, by_name, kind"),
        (("leaves",), None, "leaves: None is not a list"),
        (("leaves", 0, "name"), 1, "leaves[0].name: 1 is not a text"),
        (("leaves", 0, "box", 1, 0), 2.0, "leaves[0].box[1][0]: 2.0 is not a whole number"),
        (("leaves", 0, "box", 1, 0), True, "leaves[0].box[1][0]: True is not a whole number"),
        (("leaves", 0, "box"), [[]], "leaves[0].box: [[]] is not a list of 2"),
        (("leaves", 0, "boxes"), [], "leaves[0]: the field 'boxes' is unknown"),
        (("by_name", "b", "pair", 1), "x", "by_name['b'].pair[1]: 'x' is not a number"),
        (("by_name",), [], "by_name: [] is not an object"),
        (("kind",), "follower", "kind: 'follower' is not 'leader' or 'neighbours' or 3"),
        (("kind",), [], "kind: [] is not 'leader'"),
        (("colour",), "green", "colour: 'green' is not 'red' or 2"),
        (("bound_s",), "soon", "bound_s: 'soon' is not a number"),
        (("bound_s",), False, "bound_s: False is not a number"),
        (("size",), "3", "size: '3' is not a list"),
        (("flag",), 1, "flag: 1 is not true or false"),
        (("names",), "ab", "names: 'ab' is not a list"),
        (("content",), "ä", "content: 'ä' is not a text in base64"),
        (("content",), [0], "content: [0] is not a text in base64"),
    ],
)
def test_an_error_names_the_path_of_the_value(
    path: tuple[str | int, ...], value: Any, message: str
) -> None:
    harmed = json.loads(json.dumps({"": TREE}))
    inner = harmed
    *outer, last = ("", *path)
    for step in outer:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(CodecError) as failure:
        decode(Tree, harmed[""])
    assert str(failure.value).startswith(message)


@pytest.mark.parametrize("name", ["leaves", "by_name", "kind", "colour"])
def test_a_field_without_a_default_must_be_there(name: str) -> None:
    with pytest.raises(CodecError, match=f"^the field '{name}' is missing$"):
        decode(Tree, {n: v for n, v in TREE.items() if n != name})


def test_a_field_with_a_default_may_be_left_out() -> None:
    assert decode(Leaf, {"name": "a", "box": [[], []]}) == Leaf("a", Box((), ()))
    assert decode(Device, {"name": "cpu:0", "kind": "cpu"}) == Device("cpu:0", "cpu")


@pytest.mark.parametrize("value", [np.int64(1), np.float64(1), {1: 2}, object(), Leaf])
def test_a_value_that_would_not_be_read_back_is_not_written(value: Any) -> None:
    with pytest.raises(TypeError, match="has no form in JSON"):
        encode((value,))


@pytest.mark.parametrize("form", [np.int64, Mapping[int, str], complex])
def test_a_type_without_a_form_in_json_is_refused(form: Any) -> None:
    with pytest.raises(TypeError, match="does not support"):
        decode(form, {})


def test_numbers_that_json_does_not_have_become_null() -> None:
    nan, infinity = float("nan"), float("inf")
    assert without_nan({1: [nan, (-infinity, 0.5)], "a": "x"}) == {
        "1": [None, [None, 0.5]],
        "a": "x",
    }
