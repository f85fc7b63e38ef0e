"""How outputs are compared, and the inputs for which they are."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coexec.arrays import is_ordinary, limits_of, numpy_type
from coexec.graph.graph import Tensor
from coexec.model.difference import (
    TOLERANCE,
    Difference,
    difference_of,
    is_rounding,
    unlike,
)
from coexec.model.inputs import probes
from coexec.model.probe_names import ProbeName

ANY = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=0, max_dims=3, max_side=4),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


@given(ANY)
def test_an_array_is_like_itself(array: Any) -> None:
    assert unlike(array.copy(), array, TOLERANCE) is None


@given(ANY, st.data())
def test_infinity_and_nan_have_their_places(array: Any, data: st.DataObject) -> None:
    if not array.size:
        return
    at = data.draw(st.integers(0, array.size - 1))
    other = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 1.0]))
    found = array.copy()
    found.reshape(-1)[at] = other
    before = array.reshape(-1)[at]
    if (np.isnan(before) and np.isnan(other)) or before == other:
        assert unlike(found, array, TOLERANCE) is None
    elif not (np.isfinite(before) and np.isfinite(other)):
        assert unlike(found, array, TOLERANCE) is not None


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), "has the shape"),
        (np.ones(2), np.ones(2, np.float32), "has the type float64"),
        (np.array([1, 2]), np.array([1, 3]), "1 other values among 2"),
        (np.array([1, 2], np.int32), np.array([1, 2]), "is int32"),
        ([np.ones(2, np.float32)], [np.ones(3, np.float32)], "other members"),
        (np.float32([1, 1.001]), np.float32([1, 1]), "of its largest value"),
        (None, np.float32([1]), "has the type NoneType"),
    ],
)
def test_what_differs_is_told(found: Any, expected: Any, text: str) -> None:
    assert text in str(unlike(found, expected, TOLERANCE))


def test_numbers_below_the_normal_ones_may_become_zero() -> None:
    tiny = np.float32([1e-39, 2e-40])
    assert unlike(np.zeros(2, np.float32), tiny, TOLERANCE) is None
    assert unlike(np.zeros(2, np.float32), np.float32([1e-37, 0]), TOLERANCE) is not None


def test_rounding_is_at_most_twice_what_onnx_runtime_has_itself() -> None:
    assert is_rounding(2e-3, 1e-3) and not is_rounding(2.1e-3, 1e-3)
    assert not is_rounding(0.1, 0.1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_probes_change_float_values_alone(dtype: str) -> None:
    tensors = [Tensor("x", (3, 50), dtype), Tensor("i", (4,), "int64"), Tensor("e", (0,), dtype)]
    ordinary = {"x": np.ones((3, 50)), "i": np.arange(4), "e": np.ones(0)}
    found = {probe.name: probe.feeds for probe in probes(tensors, ordinary)}
    assert set(found) == set(get_args(ProbeName))
    values = {name: np.asarray(feeds["x"], np.float64) for name, feeds in found.items()}
    for feeds in found.values():
        assert feeds["i"] is ordinary["i"] and feeds["e"].size == 0
        assert feeds["x"].shape == (3, 50) and feeds["x"].dtype.name == dtype
    assert not values["zeros"].any()
    assert all(is_ordinary(feeds["x"]) for feeds in found.values())
    limits = limits_of(numpy_type(dtype))
    assert 0 < abs(values["small"]).min() < float(limits.tiny)
    assert (values["negative"] <= 0).all()
    assert 0 < abs(values["small"]).max() < 1e-2
    assert abs(values["large"]).max() > 100
    assert list(probes([tensors[1]], ordinary)) == []


def test_the_element_that_differs_most_is_named() -> None:
    expected = np.array([[1, 2, 4], [0, -1, np.nan]], np.float32)
    found = expected.copy()
    assert difference_of(found, expected) == Difference(0.0, (0, 0), 1.0, 1.0)
    found[0, 1], found[1, 1] = 3, -0.5
    difference = difference_of(found, expected)
    assert difference == Difference(0.25, (0, 1), 3.0, 2.0, elements=2)
    found[1, 0] = np.inf
    difference = difference_of(found, expected)
    assert difference == Difference(np.inf, (1, 0), np.inf, 0.0, elements=3, numbers_lost=1)


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        (np.zeros(2), np.zeros(3), "is float64 of shape [2], not float64 of shape [3]"),
        (np.zeros(2, np.int8), np.zeros(2), "is int8 of shape [2], not float64 of shape [2]"),
    ],
)
def test_other_types_and_shapes_have_no_element(found: Any, expected: Any, text: str) -> None:
    assert difference_of(found, expected) == Difference(np.inf, text=text)


def test_whole_numbers_differ_by_their_distance() -> None:
    found, expected = np.array([3, 250, 7], np.uint8), np.array([2, 5, 7], np.uint8)
    difference = difference_of(found, expected)
    assert difference == Difference(np.inf, (1,), 250, 5, elements=2)
    assert difference_of(np.zeros((0, 3)), np.zeros((0, 3))) == Difference(0.0)
