"""Random operators that move elements."""

from typing import Any

import numpy as np

from tests.helpers.campaign.draws import FLOATS, Draws
from tests.helpers.campaign.probe import Given, Probe

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
    places = d.indices(d.shape(0, 2), size)
    return Probe("Gather", (x, places), {"axis": axis}, d.opset(11, 13))


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


FAMILIES = {
    reshape: 4, flatten: 1, squeeze: 2, unsqueeze: 2, transpose: 3, concat: 4, split: 3,
    slice_: 5, pad: 5, expand: 2, tile: 2, gather: 3, space_depth: 2,
}  # fmt: skip
