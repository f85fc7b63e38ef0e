"""Random operators that move elements, in the layouts of the OpenCL engine.

Shapes are drawn so that tensors are stored in blocks of channels, full or not, or row-major. There
are few shapes, because every shape needs a kernel of its own.
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.helpers.layout_cases import reshape, squeeze
from tests.helpers.operator_cases import Case, Draw, dims, ints, random


def images(draw: Draw) -> tuple[int, ...]:
    """The shape of a batch of images: row-major, in full blocks, or in blocks that are not full."""
    return draw(st.integers(1, 2)), draw(st.sampled_from([3, 16, 20, 40])), 2, 3


def shapes(draw: Draw) -> tuple[int, ...]:
    other_shapes = [(5,), (2, 3), (2, 3, 4), (1, 2, 1, 3, 2)]
    return draw(st.sampled_from(other_shapes)) if draw(st.integers(0, 2)) == 0 else images(draw)


def signed(draw: Draw, axis: int, rank: int) -> int:
    return draw(st.sampled_from([axis, axis - rank]))


@st.composite
def concat(draw: Draw) -> Case:
    shape = shapes(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    sizes = [draw(st.sampled_from([1, 3, 16, 20])) for _ in range(draw(st.integers(2, 4)))]
    inputs: list[Any] = [(*shape[:axis], s, *shape[axis + 1 :]) for s in sizes]
    if draw(st.booleans()):
        inputs[-1] = random(inputs[-1])
    return Case("Concat", tuple(inputs), {"axis": signed(draw, axis, len(shape))})


@st.composite
def split(draw: Draw) -> Case:
    """Split, mostly along channels, at borders of blocks and inside blocks."""
    sizes = draw(st.sampled_from([(16, 16), (16, 8), (3, 20, 17), (1, 1, 1)]))
    axis = draw(st.sampled_from([1, 1, 0, 2]))
    shape = [draw(st.integers(1, 2)), 20, 2, 3]
    shape[axis] = sum(sizes)
    return Case("Split", (tuple(shape), ints(*sizes)), {"axis": axis})


@st.composite
def slice_(draw: Draw) -> Case:
    shape = images(draw)
    axis = draw(st.sampled_from([1, 1, 2, 3]))
    start = draw(st.sampled_from([0, 1, 2, 16])) % shape[axis]
    step = draw(st.sampled_from([1, 1, 2, -1]))
    end = shape[axis] + 5 if step > 0 else -100
    values = (ints(start), ints(end), ints(axis - 4), ints(step))
    return Case("Slice", (shape, *values))


@st.composite
def pad(draw: Draw) -> Case:
    shape = images(draw)
    mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
    begins = [draw(st.integers(-1 if mode == "constant" else 0, 1)) for _ in range(2)]
    channels, end = draw(st.sampled_from([0, 0, 2])), draw(st.integers(0, 1))
    pads = ints(0, channels, *begins, 0, channels, end, end)
    value: Any = draw(st.sampled_from([None, np.array(2.5, np.float32), ()]))
    return Case("Pad", (shape, pads, *([] if value is None else [value])), {"mode": mode}, 19)


@st.composite
def transpose(draw: Draw) -> Case:
    shape = shapes(draw)
    return Case("Transpose", (shape,), {"perm": draw(st.permutations(range(len(shape))))})


@st.composite
def expand(draw: Draw) -> Case:
    target = images(draw)
    shape = tuple(draw(st.sampled_from([1, d])) for d in target)[draw(st.integers(0, 2)) :]
    return Case("Expand", (shape, ints(*target)))


@st.composite
def tile(draw: Draw) -> Case:
    counts = [draw(st.sampled_from([1, 1, 2])) for _ in range(4)]
    return Case("Tile", (images(draw), ints(*counts)))


@st.composite
def gather(draw: Draw) -> Case:
    shape = shapes(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    attribute = {"axis": signed(draw, axis, len(shape))}
    size = shape[axis]
    counts = dims(draw, draw(st.integers(0, 2)), 1, 3)
    numbers = np.random.default_rng(0)
    return Case("Gather", (shape, numbers.integers(-size, size, counts)), attribute)


@st.composite
def resize(draw: Draw) -> Case:
    shape = images(draw)
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": draw(
            st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
        ),
        "nearest_mode": draw(
            st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
        ),
    }
    if draw(st.booleans()):  # coordinates depend on the scale, not on the rounded number of rows
        scales = draw(st.sampled_from([(0.7, 1.4), (1.8, 0.9), (1.2, 2.3)]))
        return Case("Resize", (shape, None, np.array([1, 1, *scales], np.float32)), attributes)
    sizes = draw(st.sampled_from([(4, 6), (5, 2), (1, 3), (7, 4)]))
    return Case("Resize", (shape, None, None, ints(*shape[:2], *sizes)), attributes)


@st.composite
def upsample(draw: Draw) -> Case:
    scales = np.array([1, 1, *dims(draw, 2, 1, 3)], np.float32)
    kind, opset = draw(st.sampled_from([("Upsample", 9), ("Resize", 10)]))
    mode = draw(st.sampled_from(["nearest", "linear"]))
    return Case(kind, (images(draw), scales), {"mode": mode}, opset)


@st.composite
def space_depth(draw: Draw) -> Case:
    batch, channels, height, width = images(draw)
    if draw(st.booleans()):
        return Case("SpaceToDepth", ((batch, channels, height * 2, width * 2),), {"blocksize": 2})
    mode = draw(st.sampled_from(["DCR", "CRD"]))
    shape = (batch, channels * 4, height, width)
    return Case("DepthToSpace", (shape,), {"blocksize": 2, "mode": mode})


@st.composite
def of_other_types(draw: Draw) -> Case:
    """Operators on types that are row-major in any shape."""
    dtype = draw(st.sampled_from(["int64", "uint8", "bool", "float64", "int8"]))
    shape = images(draw)
    cases = [
        Case("Transpose", (shape,), {"perm": [0, 2, 3, 1]}),
        Case("Concat", (shape, shape), {"axis": 1}),
        Case("Gather", (shape, ints(1, -1, 0)), {"axis": 1}),
        Case("Slice", (shape, ints(1), ints(3), ints(1))),
        Case("Where", (shape, shape, (1, 1, *shape[2:])), dtypes={0: "bool"}),
    ]
    case = draw(st.sampled_from(cases if dtype in ("int64", "uint8") else cases[:-1]))
    dtypes = {i: dtype for i in range(3)} | case.dtypes
    return Case(case.op_type, case.inputs, case.attributes, dtypes=dtypes)


@st.composite
def broadcast(draw: Draw) -> Case:
    """Operands with fewer channels, rows, columns or axes, computed or constant."""
    shape = images(draw)
    kind = draw(st.sampled_from(["Add", "Div", "Pow", "Max", "PRelu", "Where"]))
    thin = tuple(draw(st.sampled_from([1, d])) for d in shape)[draw(st.integers(0, 3)) :]
    if kind == "Where":
        return Case(kind, (thin, shape, random(shape)), dtypes={0: "bool"})
    if kind == "Pow":
        exponent = draw(st.sampled_from([np.array(2), np.full(thin, 3), thin]))
        return Case(kind, (abs(random(shape)) if exponent is thin else shape, exponent))
    return Case(kind, (shape, thin))


FAMILIES = {
    f.__name__: f()
    for f in (
        concat,
        split,
        slice_,
        pad,
        transpose,
        expand,
        tile,
        gather,
        resize,
        upsample,
        space_depth,
        of_other_types,
        broadcast,
        reshape,
        squeeze,
    )
}
