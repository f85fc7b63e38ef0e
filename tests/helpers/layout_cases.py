"""Random operators that move elements: Concat, Slice, Pad, Resize, Reshape and similar ones."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.operator_cases import CHANNELS, Case, Draw, dims, images, ints, random, shapes


@st.composite
def concat(draw: Draw) -> Case:
    shape = shapes(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = [draw(CHANNELS) for _ in range(draw(st.integers(1, 4)))]
    inputs: list[Any] = [(*shape[:axis], s, *shape[axis + 1 :]) for s in sizes]
    if len(sizes) > 1 and draw(st.booleans()):
        inputs[-1] = random(inputs[-1])
    return Case("Concat", tuple(inputs), {"axis": axis}, axes=tuple(range(len(shape))))


@st.composite
def slice_(draw: Draw) -> Case:
    shape = shapes(draw)
    picked = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))]
    starts, ends, steps = [], [], []
    for axis in picked:
        step = draw(st.sampled_from([1, 2, 3, -1, -2]))
        low = draw(st.integers(0, shape[axis] - 1))
        high = draw(st.integers(low + 1, shape[axis] + 3))
        backwards = (high - 1, low - 1 if low else -100)
        start, end = (low, high) if step > 0 else backwards
        shift = shape[axis] if step > 0 and draw(st.booleans()) else 0
        starts.append(start - shift)
        ends.append(end)
        steps.append(step)
    kind = draw(st.sampled_from([np.int64, np.int32]))
    values = (np.array(v, kind) for v in (starts, ends, picked, steps))
    return Case("Slice", (shape, *values), axes=tuple(range(len(shape))))


@st.composite
def pad(draw: Draw) -> Case:
    shape = shapes(draw)
    mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
    low = -1 if mode == "constant" else 0
    pads = [draw(st.integers(low, min(s - 1, 3) if mode == "reflect" else 2)) for s in shape * 2]
    sizes = [s + a + b for s, a, b in zip(shape, pads, pads[len(shape) :], strict=False)]
    pads = pads if min(sizes) > 0 else [abs(p) for p in pads]
    value = (np.array(2.5, np.float32),) if mode == "constant" and draw(st.booleans()) else ()
    return Case("Pad", (shape, ints(*pads), *value), {"mode": mode})


@st.composite
def resize(draw: Draw) -> Case:
    shape = images(draw)
    parts = st.sampled_from([(0.7, 1.4), (1.8, 0.9)])
    scale = (1, 1, *(draw(parts) if draw(st.booleans()) else dims(draw, 2, 1, 4)))
    attributes = {
        "mode": draw(st.sampled_from(["nearest", "linear", "cubic"])),
        "coordinate_transformation_mode": draw(
            st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
        ),
        "nearest_mode": draw(
            st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
        ),
    }
    if draw(st.booleans()):
        sizes = [int(s * f) for s, f in zip(shape, scale, strict=True)]
        return Case("Resize", (shape, None, None, ints(*sizes)), attributes)
    return Case("Resize", (shape, None, np.array(scale, np.float32)), attributes)


@st.composite
def old_upsample(draw: Draw) -> Case:
    shape = images(draw)
    scale = np.array((1, 1, *dims(draw, 2, 1, 3)), np.float32)
    mode = {"mode": draw(st.sampled_from(["nearest", "linear"]))}
    kind, opset = draw(st.sampled_from([("Upsample", 9), ("Resize", 10)]))
    return Case(kind, (shape, scale), mode, opset, axes=(0, 1, 2, 3))


@st.composite
def transpose(draw: Draw) -> Case:
    shape = shapes(draw)
    perm = draw(st.permutations(range(len(shape))))
    attributes = {"perm": perm} if draw(st.booleans()) else {}
    return Case("Transpose", (shape,), attributes, axes=tuple(range(len(shape))))


@st.composite
def reshape(draw: Draw) -> Case:
    """Reshape between two shapes that group the same factors."""
    factors = dims(draw, draw(st.integers(1, 5)), 1, 4)

    def grouped() -> tuple[int, ...]:
        shape = [1]
        for factor in factors:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        return tuple(shape)

    return Case("Reshape", (grouped(), ints(*grouped())))


@st.composite
def squeeze(draw: Draw) -> Case:
    kind = draw(st.sampled_from(["Squeeze", "Unsqueeze", "Flatten"]))
    if kind == "Squeeze":
        a, b = dims(draw, 2)
        return Case(kind, ((a, 1, b, 1), ints(1, 3)), axes=(0, 1))
    if kind == "Unsqueeze":
        return Case(kind, (dims(draw, 2), ints(0, -1)), axes=(1, 2))
    shape = draw(st.sampled_from([(3, 4, 1, 1), (1, 4, 1, 3), (2, 3, 4, 1), (4, 1, 1, 5)]))
    return Case(kind, (shape,), {"axis": draw(st.integers(0, 4))})


@st.composite
def repeat(draw: Draw) -> Case:
    if draw(st.booleans()):
        shape = images(draw)
        counts = tuple(draw(st.sampled_from([1, 1, 2])) for _ in shape)
        if draw(st.booleans()):
            return Case("Tile", (shape, ints(*counts)))
        thin = tuple(draw(st.sampled_from([1, d])) for d in shape)
        return Case("Expand", (thin[draw(st.integers(0, 2)) :], ints(*shape)))
    shape = dims(draw, 3, 1, 3)
    target = tuple(draw(st.sampled_from([1, d])) if d > 1 else 3 for d in (*shape, 1))
    return Case("Expand", ((*shape, 1), ints(2, *target)), axes=(0, 1, 2, 3, 4))


@st.composite
def space_depth(draw: Draw) -> Case:
    size = draw(st.integers(1, 3))
    batch, channels, height, width = images(draw)
    if draw(st.booleans()):
        shape = (batch, channels, height * size, width * size)
        return Case("SpaceToDepth", (shape,), {"blocksize": size}, axes=(0, 2, 3))
    mode = draw(st.sampled_from(["DCR", "CRD"]))
    shape = (batch, channels * size**2, height, width)
    return Case("DepthToSpace", (shape,), {"blocksize": size, "mode": mode}, axes=(0, 2, 3))


FAMILIES = {
    f.__name__: f()
    for f in (
        concat,
        slice_,
        pad,
        resize,
        old_upsample,
        transpose,
        reshape,
        squeeze,
        repeat,
        space_depth,
    )
}
