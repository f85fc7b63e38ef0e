"""Copies between the host's arrays as commands of a device equal those of numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.engines.base import BoxCopy, aligned_empty
from coexec.engines.registry import open_devices
from coexec.graph.graph import Tensor
from tests.helpers.needs_opencl import opencl_name, opencl_options

Draw = Any
TYPES = ["float32", "int8", "float16", "int64"]


def array(shape: tuple[int, ...], dtype: str) -> Any:
    made = aligned_empty(Tensor("", shape, dtype))
    made[...] = np.arange(made.size).reshape(shape) % 100
    return made


@st.composite
def copies(draw: Draw) -> BoxCopy:
    """Any boxes of equal size of two arrays of one to five axes."""
    dtype = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))

    def side() -> tuple[Any, Any]:
        margins = [draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape]
        size = tuple(s + a + b for s, (a, b) in zip(shape, margins, strict=True))
        box = tuple(slice(a, a + s) for s, (a, _) in zip(shape, margins, strict=True))
        whole = array(size, dtype)
        return whole, whole[box]

    return BoxCopy(*side(), *side())


@pytest.fixture(scope="module")
def cores() -> Any:
    (device,) = open_devices([opencl_name()], options=opencl_options())
    return device.engine


def test_copies_are_those_of_numpy(cores: Any) -> None:
    refused = []

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(copies())
    def equal(copy: BoxCopy) -> None:
        copy.target[...] = 0
        expected = copy.target.copy()
        box = copy.into.__array_interface__["data"][0] - copy.target.__array_interface__["data"][0]
        view = np.ndarray(copy.into.shape, copy.into.dtype, expected, box, copy.into.strides)
        view[...] = copy.part
        copier = cores.copier([copy])
        refused.append(copier is None)
        if copier is not None:
            for _ in range(2):
                copier()
            del copier  # waits
            np.testing.assert_array_equal(copy.target, expected)

    equal()
    assert 0 < sum(refused) < len(refused) / 4  # five axes may need too many commands
