"""Layouts of tensors: their text, and how arrays lie in memory."""

import numpy as np
import pytest

from coexec.graph.region import Region
from coexec.lowering.layout import NHWC, PADDED, PLAIN, WIDE, Layout, blocks_of

LAYOUTS = {
    "": PLAIN,
    "in NHWC": NHWC,
    "in float32": WIDE,
    "with padded channels": PADDED,
    "in blocks of 8": blocks_of(8),
    "in blocks of 16 in float32": blocks_of(16, "float32"),
    "in NHWC in float32 with padded channels": Layout("NHWC", 0, "float32", True),
}


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_layout_is_read_from_its_text(text: str) -> None:
    assert str(LAYOUTS[text]) == text and Layout.parse(text) == LAYOUTS[text]


@pytest.mark.parametrize("text", ["8", "in blocks", "in blocks of 8 in NHWC", "in"])
def test_another_text_is_no_layout(text: str) -> None:
    with pytest.raises(ValueError, match="an example is 'in blocks of 8'"):
        Layout.parse(text)


def test_blocks_are_always_padded() -> None:
    assert blocks_of(4).padded and blocks_of(0) == PLAIN
    with pytest.raises(ValueError, match="blocks_of"):
        Layout(block=4)


def test_a_region_of_blocks_is_a_view_of_whole_blocks() -> None:
    array = np.arange(2 * 8 * 3).reshape(2, 8, 3)
    region = Region((0, 4, 1), (1, 8, 3))
    view = blocks_of(4).view(array, region)
    assert view.shape == (1, 1, 2, 4) and np.shares_memory(view, array)
    lying = array.reshape(2, 2, 3, 4)
    assert np.array_equal(view, lying[:1, 1:, 1:])


def test_a_scalar_has_a_view() -> None:
    array = np.zeros(())
    PLAIN.view(array, Region((), ()))[...] = 7
    assert array == 7
