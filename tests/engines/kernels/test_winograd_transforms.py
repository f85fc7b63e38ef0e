"""The transforms of Winograd's method: their matrices, and the lines that compute them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.engines.kernels.winograd_transforms import (
    LARGEST,
    Filtering,
    Matrix,
    transform_inputs,
    transform_outputs,
)


@st.composite
def filterings(draw: st.DrawFn) -> Filtering:
    r = draw(st.integers(1, 7))
    return Filtering(draw(st.integers(1, LARGEST + 1 - r)) if r > 1 else 1, r)


@given(filterings(), st.integers(0, 2**32 - 1))
def test_the_transforms_filter(of: Filtering, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs, taps = rng.standard_normal(of.size), rng.standard_normal(of.r)
    at_points = (np.array(of.filter) @ taps) * (np.array(of.inputs) @ inputs)
    filtered = [inputs[i : i + of.r] @ taps for i in range(of.m)]
    np.testing.assert_allclose(np.array(of.outputs) @ at_points, filtered, atol=1e-8)


@given(filterings())
def test_factors_of_inputs_and_outputs_are_exact(of: Filtering) -> None:
    assert all(float(np.float32(f)) == f for row in (*of.inputs, *of.outputs) for f in row)


def test_the_matrices_of_the_paper() -> None:
    """Lavin and Gray, arXiv:1509.09308, section 4.1; the signs of two rows may change together."""
    two = Filtering(2, 3)
    inputs = [[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
    taps = [[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    np.testing.assert_array_equal(two.inputs, inputs)
    np.testing.assert_array_equal(two.outputs, [[1, 1, 1, 0], [0, 1, -1, 1]])
    np.testing.assert_array_equal(two.filter, taps)


@pytest.mark.parametrize(
    ("transform", "matrix"),
    [(transform_inputs, "inputs"), (transform_outputs, "outputs")],
    ids=["inputs", "outputs"],
)
@given(of=filterings())
def test_lines_compute_the_product_with_the_matrix(
    of: Filtering, transform: Callable[..., list[str]], matrix: str
) -> None:
    """The lines are read as Python; they declare their types where C does."""
    factors: Matrix = getattr(of, matrix)
    values = np.random.default_rng(0).integers(-9, 9, len(factors[0])).tolist()
    lines = transform(of, "V", "source[{}]".format, "target[{}]".format)
    text = " ".join(lines).replace("const V ", "").replace("{", "").replace("}", "")
    target = [0.0] * len(factors)
    names: dict[str, Any] = {"source": values, "target": target}
    for statement in text.replace("f * ", " * ").split(";"):
        exec(statement.strip(), names)
    np.testing.assert_allclose(target, np.array(factors) @ values, atol=1e-9)
