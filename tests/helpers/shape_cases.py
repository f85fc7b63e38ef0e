"""Operators for which, with some sizes, ONNX infers other shapes than ONNX Runtime computes.

ONNX Runtime refuses some of the cases.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.operator_cases import Case, Draw, dims, ints, random

_SCALES = (
    0.1,
    0.2,
    0.3,
    1 / 3,
    0.4,
    0.5,
    0.6,
    2 / 3,
    0.7,
    0.9,
    1.0,
    1.1,
    1.2,
    1.3,
    1.4,
    1.6,
    1.7,
    1.8,
    1.9,
    2.0,
    2.1,
    2.3,
    2.7,
    3.0,
)
_SIZES = st.one_of(st.integers(1, 30), st.sampled_from([5, 10, 20, 30]))
"""A multiple of ten times a scale in tenths is a whole number, or nearly one after rounding."""
_PADDINGS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@st.composite
def pool(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    opset = draw(
        st.sampled_from(
            {"MaxPool": [8, 10, 12, 22], "AveragePool": [7, 11, 19, 22], "LpPool": [2, 11, 18, 22]}[
                kind
            ]
        )
    )
    rank = draw(st.integers(1, 2))
    kernel = dims(draw, rank, 1, 4)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": dims(draw, rank, 1, 4)}
    attributes["auto_pad"] = draw(st.sampled_from(_PADDINGS))
    if attributes["auto_pad"] == "NOTSET":
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    if opset >= (18 if kind == "LpPool" else 10):
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    if opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[kind]:
        attributes["dilations"] = dims(draw, rank, 1, 3)
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    return Case(kind, ((2, 3, *dims(draw, rank, 4, 13)),), attributes, opset)


@st.composite
def conv_transpose(draw: Draw) -> Case:
    rank = draw(st.integers(1, 2))
    sizes, kernel, strides = (dims(draw, rank, 1, high) for high in (7, 4, 3))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dims(draw, rank, 1, 3)}
    attributes["auto_pad"] = draw(st.sampled_from(_PADDINGS))
    if draw(st.booleans()):
        attributes["output_padding"] = [draw(st.integers(0, s - 1)) for s in strides]
    if attributes["auto_pad"] == "NOTSET":
        attributes["pads"] = dims(draw, 2 * rank, 0, 2)
    if draw(st.integers(0, 2)) == 0:
        sizes_by_stride = zip(sizes, strides, strict=True)
        attributes["output_shape"] = [
            max(1, n * s + draw(st.integers(-2, 3))) for n, s in sizes_by_stride
        ]
    weight = random((2, 3, *kernel))
    opset = draw(st.sampled_from([1, 11, 22]))
    return Case("ConvTranspose", ((2, 2, *sizes), weight), attributes, opset)


@st.composite
def resize(draw: Draw) -> Case:
    """Resize by scales or to sizes, for all axes or for some."""
    opset = draw(st.sampled_from([11, 13, 18, 19]))
    rank = draw(st.integers(1, 2))
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": draw(st.sampled_from(_coordinates(opset))),
        "nearest_mode": draw(
            st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
        ),
        "exclude_outside": int(mode == "cubic" and draw(st.booleans())),
    }
    before: Sequence[float] = (1, 1)
    if opset >= 18 and draw(st.booleans()):
        before = ()
        attributes["axes"] = draw(st.permutations(range(2, 2 + rank)))
        attributes["antialias"] = int(mode != "nearest" and draw(st.booleans()))
    shape = (1, 2, *(draw(_SIZES) for _ in range(rank)))
    scales = np.array([*before, *(draw(st.sampled_from(_SCALES)) for _ in range(rank))], np.float32)
    roi = np.zeros(0, np.float32)
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        start = [draw(st.floats(0.0, 0.4)) for _ in range(rank)]
        end = [draw(st.floats(0.5, 0.9)) for _ in range(rank)]
        whole = [0.0] * len(before), [1.0] * len(before)
        roi = np.array([*whole[0], *start, *whole[1], *end], np.float32)
    if draw(st.integers(0, 2)):
        return Case("Resize", (shape, roi, scales), attributes, opset)
    if opset >= 18:
        policies = ["stretch", "not_larger", "not_smaller"] if not before else ["stretch"]
        attributes["keep_aspect_ratio_policy"] = draw(st.sampled_from(policies))
    sizes = ints(*(shape[:2] if before else ()), *dims(draw, rank, 1, 40))
    none = np.zeros(0, np.float32) if opset < 13 else None
    return Case("Resize", (shape, roi, none, sizes), attributes, opset)


def _coordinates(opset: int) -> list[str]:
    modes = [
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
    ]
    if opset == 11:
        modes.append("tf_half_pixel_for_nn")
    return [*modes, "half_pixel_symmetric"] if opset >= 19 else modes


@st.composite
def upsample(draw: Draw) -> Case:
    kind, opset = draw(st.sampled_from([("Upsample", 7), ("Upsample", 9), ("Resize", 10)]))
    low = 0.0 if kind == "Resize" else 1.0
    scales = [1.0, 1.0, *(draw(st.sampled_from([s for s in _SCALES if s >= low])) for _ in "hw")]
    shape = (1, 2, draw(_SIZES), draw(_SIZES))
    attributes: dict[str, Any] = {"mode": draw(st.sampled_from(["nearest", "linear"]))}
    if opset == 7:
        return Case(kind, (shape,), attributes | {"scales": scales}, opset)
    return Case(kind, (shape, np.array(scales, np.float32)), attributes, opset)


@st.composite
def sliced(draw: Draw) -> Case:
    """Slice forwards and backwards, with bounds and steps far outside the axes."""
    shape = dims(draw, 3, 1, 9)
    axes = draw(st.permutations(range(3)))[:2]
    bounds = st.one_of(st.integers(-12, 12), st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1]))
    starts, ends = ([draw(bounds) for _ in axes] for _ in "se")
    opset = draw(st.sampled_from([1, 10, 13]))
    if opset == 1:
        return Case("Slice", (shape,), {"starts": starts, "ends": ends, "axes": axes}, opset)
    steps = [draw(st.sampled_from([-(2**33), -3, -1, 1, 2, 2**31])) for _ in axes]
    rows = (ints(*row) for row in (starts, ends, axes, steps))
    return Case("Slice", (shape, *rows), opset=opset)


@st.composite
def squeezed(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["Squeeze", "Unsqueeze"]))
    shape = draw(st.sampled_from([(1, 3, 1), (1, 1, 1), (2, 1, 3, 1)]))
    axes = draw(st.sampled_from([[0], [2, 0], [-1], [0, -1], [1]]))
    opset = draw(st.sampled_from([1, 11, 13, 21]))
    if opset < 13:
        return Case(kind, (shape,), {"axes": axes}, opset)
    if kind == "Squeeze" and draw(st.booleans()):
        axes = []
    return Case(kind, (shape, ints(*axes)), opset=opset)


@st.composite
def spectrum(draw: Draw) -> Case:
    length = draw(st.integers(3, 16))
    attributes = draw(st.sampled_from([{}, {"onesided": 0}, {"onesided": 1}]))
    signal = (1, draw(st.integers(16, 50)), 1)
    step, frame = np.array(draw(st.integers(1, 9))), np.array(length)
    return Case("STFT", (signal, step, random((length,)), frame), attributes)


FAMILIES = {
    "pool": pool(),
    "conv_transpose": conv_transpose(),
    "resize": resize(),
    "upsample": upsample(),
    "slice": sliced(),
    "squeeze": squeezed(),
    "spectrum": spectrum(),
}
