"""Random operators that move elements, and operators that compute shapes."""

from typing import Any

import numpy as np

from tests.helpers.campaign.draws import FLOATS, Draws
from tests.helpers.campaign.probe import Given, Probe

__all__ = ["FAMILIES"]

_ANY = (*FLOATS, "int64", "int32", "uint8", "int8", "bool")


def _small(d: Draws, low: int = 1, high: int = 5) -> tuple[int, ...]:
    """A shape with at least one axis by default."""
    return d.shape(low, high)


def reshape(d: Draws) -> Probe:
    shape = _small(d, 0)
    total = int(np.prod(shape))
    target = [int(s) for s in d.rng.permutation(np.array(shape, np.int64))]
    if d.chance(0.3):
        target = [total]
    elif d.chance(0.3) and len(target) > 1:
        target = [target[0] * target[1], *target[2:]]
    if target and d.chance(0.5) and 0 not in target:
        target[d.number(0, len(target) - 1)] = -1
    if shape and target and d.chance(0.15):
        target = [0, *target[1:]] if target[0] == shape[0] else target
    opset = d.opset(7, 13, 14, 19)
    attributes = {"allowzero": d.number(0, 1)} if opset >= 14 and d.chance(0.2) else {}
    inputs = (d.data(shape, d.pick(_ANY)), d.parameter(target))
    return Probe("Reshape", inputs, attributes, opset)


def flatten(d: Draws) -> Probe:
    shape = _small(d, 0)
    return Probe(
        "Flatten",
        (d.data(shape, d.pick(_ANY)),),
        {"axis": d.number(-len(shape), len(shape))},
        d.opset(11, 13),
    )


def squeeze(d: Draws) -> Probe:
    shape = _small(d, 0)
    ones = [a for a, size in enumerate(shape) if size == 1]
    some = [a - (len(shape) if d.chance(0.4) else 0) for a in ones if d.chance(0.7)]
    x = d.data(shape, d.pick(_ANY))
    opset = d.opset(11, 13, 21)
    if opset < 13:
        return Probe("Squeeze", (x,), {"axes": some} if some else {}, opset)
    return Probe("Squeeze", (x, *([d.parameter(some)] if some else [])), {}, opset)


def unsqueeze(d: Draws) -> Probe:
    shape = _small(d, 0, 4)
    count = d.number(1, 2)
    rank = len(shape) + count
    axes = [int(a) - (rank if d.chance(0.3) else 0) for a in d.rng.permutation(rank)[:count]]
    x = d.data(shape, d.pick(_ANY))
    if d.chance(0.4):
        return Probe("Unsqueeze", (x,), {"axes": axes}, 11)
    return Probe("Unsqueeze", (x, d.parameter(axes)), {}, d.opset(13, 21))


def transpose(d: Draws) -> Probe:
    shape = _small(d, 0)
    order = [int(a) for a in d.rng.permutation(len(shape))]
    attributes = {"perm": order} if shape and d.chance(0.85) else {}
    return Probe("Transpose", (d.data(shape, d.pick(_ANY)),), attributes, d.opset(7, 13, 21))


def concat(d: Draws) -> Probe:
    shape = _small(d)
    axis = d.axis(len(shape))
    dtype = d.pick(_ANY)
    parts = []
    for _ in range(d.number(1, 4)):
        own = list(shape)
        if -len(shape) <= axis < len(shape):
            own[axis] = d.pick((0, 1, 1, 2, 3, 8, 16))
        parts.append(d.either(own, dtype))
    parts[d.number(0, len(parts) - 1)] = d.data(parts[0].first.shape, dtype)
    return Probe("Concat", tuple(parts), {"axis": axis}, d.opset(11, 13))


def split(d: Draws) -> Probe:
    shape = list(_small(d))
    axis = d.axis(len(shape), 0.0)
    outputs = d.number(1, 4)
    sizes = [d.pick((0, 1, 1, 2, 3, 8)) for _ in range(outputs)]
    opset = d.opset(11, 13, 18)
    x_sizes = sum(sizes)
    even = d.chance(0.3)
    shape[axis] = outputs * d.number(1, 3) if even and opset < 18 else x_sizes or d.number(1, 9)
    x = d.data(shape, d.pick(_ANY))
    attributes: dict[str, Any] = {"axis": axis}
    if even:
        if opset == 18:
            attributes["num_outputs"] = outputs
        return Probe("Split", (x,), attributes, opset, outputs)
    if opset < 13:
        return Probe("Split", (x,), {**attributes, "split": sizes}, opset, outputs)
    return Probe("Split", (x, d.parameter(sizes)), attributes, opset, outputs)


def slice_(d: Draws) -> Probe:
    shape = _small(d)
    axes = d.axes(len(shape))
    starts, ends, steps = [], [], []
    for axis in axes:
        size, step = shape[axis], d.pick((1, 1, 1, 2, 3, -1, -2))
        starts.append(d.pick((0, 1, -1, size, -size, size + 3, -size - 3, 2)))
        ends.append(d.pick((0, 1, -1, size, -size, size + 3, -size - 3, 2**31 - 1, -(2**31))))
        steps.append(step)
    x = d.data(shape, d.pick(_ANY))
    if d.chance(0.25):
        return Probe("Slice", (x,), {"starts": starts, "ends": ends, "axes": axes}, 7)
    dtype = d.pick(("int64", "int32"))
    inputs = [x, *(d.parameter(v, dtype) for v in (starts, ends, axes))]
    if d.chance(0.7):
        inputs.append(d.parameter(steps, dtype))
    return Probe("Slice", tuple(inputs), {}, d.opset(10, 11, 13))


def pad(d: Draws) -> Probe:
    shape = _small(d)
    rank = len(shape)
    opset = d.opset(7, 11, 13, 18, 19)
    modes = ("constant", "constant", "reflect", "edge") + (("wrap",) if opset >= 19 else ())
    mode = d.pick(modes)
    most = 3 if mode in ("constant", "edge") else 1
    low = -1 if d.chance(0.3) else 0
    axes = d.axes(rank) if opset >= 18 and d.chance(0.3) else None
    count = 2 * (rank if axes is None else len(axes))
    pads = [d.number(low, most) if d.chance(0.6) else 0 for _ in range(count)]
    value = d.pick((0.0, 2.5, -1.0))
    if opset == 7:
        attributes = {"mode": mode, "pads": pads, "value": value}
        return Probe("Pad", (d.data(shape),), attributes, opset)
    dtype = d.pick((*FLOATS, "int32", "int64", "uint8", "bool") if opset >= 13 else FLOATS)
    number = value if dtype in FLOATS else 3
    fill = Given((np.array(number, dtype),), d.chance(0.8)) if d.chance(0.5) else None
    inputs: list[Given | None] = [d.data(shape, dtype), d.parameter(pads)]
    if fill is not None or axes is not None:
        inputs.append(fill)
    if axes is not None:
        inputs.append(d.parameter(axes))
    return Probe("Pad", tuple(inputs), {"mode": mode}, opset)


def expand(d: Draws) -> Probe:
    target = _small(d)
    thin = d.thinner(target)
    longer = [
        1 if d.chance(0.1) and t == s else t
        for t, s in zip(target[len(target) - len(thin) :], thin, strict=False)
    ]
    ends = [*target[: len(target) - len(longer)], *longer]
    return Probe("Expand", (d.data(thin, d.pick(_ANY)), d.parameter(ends)), {}, d.opset(8, 13))


def tile(d: Draws) -> Probe:
    shape = _small(d, 1, 4)
    counts = [d.pick((1, 1, 2, 3, 0)) for _ in shape]
    return Probe("Tile", (d.data(shape, d.pick(_ANY)), d.parameter(counts)), {}, d.opset(7, 13))


def gather(d: Draws) -> Probe:
    shape = _small(d)
    rank = len(shape)
    axis = d.axis(rank)
    size = shape[axis] if -rank <= axis < rank else 1
    dtype = d.pick(_ANY)
    x = d.either(shape, dtype)
    if d.chance(0.6):
        places = d.indices(d.shape(0, 2), size)
        return Probe("Gather", (x, places), {"axis": axis}, d.opset(11, 13))
    counts = [d.number(1, max(1, s)) for s in shape]
    counts[axis if -rank <= axis < rank else 0] = d.number(1, 4)
    places = d.indices(counts, size)
    return Probe("GatherElements", (x, places), {"axis": axis}, d.opset(11, 13))


def gather_nd(d: Draws) -> Probe:
    shape = _small(d, 1, 4)
    batch = d.number(0, 1) if len(shape) > 1 else 0
    last = d.number(1, len(shape) - batch)
    outer = (*shape[:batch], *d.shape(0, 2))
    places = d.indices((*outer, last), min(shape[batch : batch + last]))
    places = Given(tuple(a.astype(np.int64) for a in places.sets), places.constant)
    opset = d.opset(11, 12, 13) if not batch else d.opset(12, 13)
    attributes = {"batch_dims": batch} if batch else {}
    return Probe("GatherND", (d.data(shape, d.pick(_ANY)), places), attributes, opset)


def scatter(d: Draws) -> Probe:
    """Scatter with different indices."""
    shape = _small(d, 1, 4)
    opset = d.opset(11, 13, 16, 18)
    reductions = {16: ("none", "add", "mul"), 18: ("none", "add", "mul", "max", "min")}
    reduction = d.pick(reductions.get(opset, ("none",)))
    dtype = d.pick(FLOATS if reduction != "none" else _ANY)
    attributes: dict[str, Any] = {"reduction": reduction} if opset >= 16 else {}
    if d.chance(0.5):
        rank = len(shape)
        axis = d.axis(rank, 0.0)
        size = shape[axis]
        counts = [d.number(min(1, s), s) for s in shape]
        row = d.rng.permutation(size)[: counts[axis]] - (size if d.chance(0.3) else 0)
        row = row.reshape([-1 if a == axis % rank else 1 for a in range(rank)])
        places = _with_bad(d, np.broadcast_to(row, counts).copy(), size)
        kind = "ScatterElements" if opset > 11 or d.chance(0.7) else "Scatter"
        if kind == "Scatter":
            opset = 9
        inputs = (d.data(shape, dtype), places, d.data(counts, dtype))
        return Probe(kind, inputs, {**attributes, "axis": axis}, opset)
    last = d.number(1, len(shape))
    count = min(3, min(shape[:last]))
    columns = [d.rng.permutation(s)[:count] for s in shape[:last]]
    places = _with_bad(d, np.stack(columns, -1), min(shape[:last]))
    inputs = (d.data(shape, dtype), places, d.data((count, *shape[last:]), dtype))
    return Probe("ScatterND", inputs, attributes, opset)


def _with_bad(d: Draws, good: Any, size: int) -> Given:
    good = good.astype(np.int64)
    if d.chance(0.4):
        return Given((good,), constant=True)
    if not good.size or d.chance(0.7):
        return Given((good,))
    bad = good.copy()
    bad.flat[d.number(0, bad.size - 1)] = d.pick(
        (size + 20, -size - 20, 2**31 - 1, 2**32, -(2**63))
    )
    return Given((good, bad))


def space_depth(d: Draws) -> Probe:
    block = d.number(1, 3)
    batch, channels, h, w = d.number(1, 2), d.pick((1, 3, 4, 8)), d.number(1, 4), d.number(1, 4)
    dtype = d.pick(("float32", "float32", "float64"))
    if d.chance(0.5):
        x = d.data((batch, channels, h * block, w * block), dtype)
        return Probe("SpaceToDepth", (x,), {"blocksize": block}, d.opset(7, 13))
    attributes = {"blocksize": block, "mode": d.pick(("DCR", "CRD"))}
    x = d.data((batch, channels * block * block, h, w), dtype)
    return Probe("DepthToSpace", (x,), attributes, d.opset(11, 13))


def by_place(d: Draws) -> Probe:
    kind = d.pick(("Trilu", "ReverseSequence", "OneHot", "EyeLike", "CenterCropPad"))
    if kind == "Trilu":
        more = [d.constant(d.number(-3, 3))] if d.chance(0.6) else []
        x = d.data(_small(d, 2, 4), d.pick(("float32", "float64", "int64")))
        return Probe(kind, (x, *more), {"upper": d.number(0, 1)}, 14)
    if kind == "ReverseSequence":
        shape = (d.number(1, 5), d.number(1, 4), *d.shape(0, 2))
        turned = d.number(0, 1)
        lengths = d.rng.integers(1, shape[turned] + 1, shape[1 - turned])
        attributes = {"time_axis": turned, "batch_axis": 1 - turned}
        lengths_input = Given((lengths,), constant=d.chance(0.6))
        return Probe(kind, (d.data(shape), lengths_input), attributes, 10)
    if kind == "OneHot":
        depth = d.number(1, 6)
        indices = d.rng.integers(-depth - 1, depth + 2, d.shape(1, 3))
        values = d.constant([d.pick((0.0, -1.0)), d.pick((1.0, 5.0))], "float32")
        return Probe(
            kind,
            (Given((indices,)), d.constant(depth), values),
            {"axis": d.pick((-1, 0, 1))},
            d.opset(9, 11),
        )
    if kind == "EyeLike":
        return Probe(kind, (d.data(_small(d, 2, 2)),), {"k": d.number(-2, 2)}, d.opset(9, 22))
    shape = _small(d, 1, 4)
    target = [d.number(1, 9) for _ in shape]
    return Probe(kind, (d.data(shape), d.constant(target)), {}, 18)


def of_shapes(d: Draws) -> Probe:
    kind = d.pick(("Shape", "Size", "ConstantOfShape", "Range"))
    if kind == "Size":
        return Probe(kind, (d.data(d.shape(), d.pick(_ANY)),), {}, d.opset(7, 13, 19))
    if kind == "Shape":
        opset = d.opset(7, 13, 15, 19)
        attributes = {}
        if opset >= 15 and d.chance(0.6):
            attributes = {"start": d.number(-3, 3), "end": d.number(-3, 3)}
        return Probe(kind, (d.data(d.shape(), d.pick(_ANY)),), attributes, opset)
    if kind == "ConstantOfShape":
        return Probe(kind, (d.parameter(list(d.shape())),), {}, d.opset(9, 20, 21))
    start, step = d.number(-3, 3), d.pick((1, 2, -1, 3))
    limit = start + step * d.number(0, 6) + d.pick((0, 1))
    dtype = d.pick(("int64", "int32", "float32", "float64"))
    return Probe(kind, tuple(d.parameter(v, dtype) for v in (start, limit, step)), {}, 11)


def by_values(d: Draws) -> Probe:
    """Operators whose result shape depends on values."""
    kind = d.pick(("NonZero", "Compress", "Unique", "NonMaxSuppression"))
    if kind == "NonZero":
        return Probe(
            kind,
            (d.data(_small(d, 1, 3), d.pick(("float32", "int64", "bool"))),),
            {},
            d.opset(9, 13),
        )
    if kind == "Compress":
        shape = _small(d)
        axis = d.axis(len(shape), 0.0)
        return Probe(kind, (d.data(shape), d.data((shape[axis],), "bool")), {"axis": axis}, 11)
    if kind == "Unique":
        x = Given((d.rng.integers(0, 4, d.shape(1, 1)).astype(np.float32),))
        return Probe(kind, (x,), {"sorted": d.number(0, 1)}, 11, d.number(1, 4))
    boxes = Given((d.rng.random((1, 6, 4)).astype(np.float32),))
    inputs = (boxes, d.data((1, 2, 6)), d.constant([3]), d.constant([0.5], "float32"))
    return Probe(kind, inputs, {"center_point_box": d.number(0, 1)}, d.opset(10, 11))


FAMILIES = {
    reshape: 4, flatten: 1, squeeze: 2, unsqueeze: 2, transpose: 3, concat: 4, split: 3,
    slice_: 5, pad: 5, expand: 2, tile: 2, gather: 5, gather_nd: 2, scatter: 4, space_depth: 2,
    by_place: 3, of_shapes: 3, by_values: 2,
}  # fmt: skip
