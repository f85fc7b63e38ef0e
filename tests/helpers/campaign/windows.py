"""Random operators with windows: convolutions, pools, resizing."""

from typing import Any

from tests.helpers.campaign.draws import Draws
from tests.helpers.campaign.probe import Given, Probe


def _sizes(d: Draws, rank: int) -> list[int]:
    if d.chance(0.03):
        return [0 if d.chance(0.5) else 3 for _ in range(rank)]
    return d.ints(rank, 1, 11 if rank < 3 else 6)


def _window(d: Draws, rank: int, *, pool: bool, dilated: bool = True) -> dict[str, Any]:
    """Kernel, strides, padding and dilations; some windows are too large for their input."""
    kernel = d.ints(rank, 1, 3) if d.chance(0.7) else d.ints(rank, 1, 5)
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if d.chance(0.7):
        attributes["strides"] = d.ints(rank, 1, 3)
    if dilated and d.chance(0.3):
        attributes["dilations"] = d.ints(rank, 1, 3)
    kind = d.pick(("", "", "", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if kind:
        attributes["auto_pad"] = kind
    if kind in ("", "NOTSET") and d.chance(0.7):
        most = [k - 1 if pool else k + 1 for k in kernel]
        attributes["pads"] = [d.number(0, m) for m in most * 2]
        if d.chance(0.02):
            attributes["pads"][0] = -1
    return attributes


def conv(d: Draws) -> Probe:
    rank = d.pick((1, 2, 2, 2, 3))
    window = _window(d, rank, pool=False)
    groups = d.pick((1, 1, 1, 2, 3, 4, 16))
    inner, outer = (d.pick((1, 1, 2, 3, 5, 8)) for _ in range(2))
    if groups == 1 and d.chance(0.4):
        inner, outer = d.pick((8, 16, 17)), d.pick((8, 16, 17, 32))
    if d.chance(0.25):  # a convolution for Winograd's algorithm
        taps = [d.pick((1, 3, 3, 3, 5, 7)) for _ in range(rank)]
        window = {"kernel_shape": taps, "pads": [tap // 2 for tap in taps] * 2}
    dtype = d.pick(("float32", "float32", "float32", "float16", "float64"))
    weight = (groups * outer, inner, *window["kernel_shape"])
    x = d.data((d.pick((1, 1, 2)), groups * inner, *_sizes(d, rank)), dtype, summed=True)
    w = d.weights(weight, dtype)
    # As an input, the weights are still finite: ONNX Runtime multiplies the padding with them, too.
    if d.chance(0.15):
        w = Given(w.sets)
    bias = [d.weights((groups * outer,), dtype)] if d.chance(0.5) else []
    if d.chance(0.2):
        del window["kernel_shape"]
    return Probe("Conv", (x, w, *bias), {**window, "group": groups}, d.opset(7, 11, 17, 22))


def conv_transpose(d: Draws) -> Probe:
    rank = d.pick((1, 2, 2, 2, 3))
    groups, inner, outer = d.pick((1, 1, 2, 3)), d.pick((1, 2, 5, 8)), d.pick((1, 2, 5, 8))
    kernel, strides = d.ints(rank, 1, 4), d.ints(rank, 1, 3)
    attributes: dict[str, Any] = {"group": groups, "kernel_shape": kernel, "strides": strides}
    if d.chance(0.3):
        attributes["dilations"] = d.ints(rank, 1, 2)
    if d.chance(0.3):
        attributes["output_padding"] = [d.number(0, s - 1) for s in strides]
    sizes = _sizes(d, rank)
    padding = d.pick(("pads", "pads", "auto", "shape", "none"))
    if padding == "pads":
        attributes["pads"] = [d.number(0, max(0, (k - 1) // 2)) for k in kernel * 2]
    elif padding == "auto":
        attributes["auto_pad"] = d.pick(("VALID", "SAME_UPPER", "SAME_LOWER"))
    elif padding == "shape":
        least = [s * (n - 1) + 1 for s, n in zip(strides, sizes, strict=True)]
        attributes["output_shape"] = [max(1, n + d.number(0, 2)) for n in least]
    x = d.data((d.pick((1, 1, 2)), groups * inner, *sizes), summed=True)
    bias = [d.weights((groups * outer,))] if d.chance(0.5) else []
    w = d.weights((groups * inner, outer, *kernel))
    return Probe("ConvTranspose", (x, w, *bias), attributes, d.opset(7, 11, 17, 22))


def pool(d: Draws) -> Probe:
    kind = d.pick(("MaxPool", "MaxPool", "AveragePool"))
    rank = d.pick((1, 2, 2, 2, 3))
    opset = d.opset(7, 10, 11, 17, 19, 22)
    dilated = {"MaxPool": 10, "AveragePool": 19}[kind] <= opset
    attributes = _window(d, rank, pool=True, dilated=dilated)
    if opset >= 10 and d.chance(0.5):
        attributes["ceil_mode"] = d.number(0, 1)
    if kind == "AveragePool":
        attributes["count_include_pad"] = d.number(0, 1)
    outputs = 2 if kind == "MaxPool" and opset >= 8 and d.chance(0.2) else 1
    if outputs == 2 and d.chance(0.3):
        attributes["storage_order"] = 1
    dtypes = ("float32", "float32", "float32", "float16", "float64")
    dtype = d.pick((*dtypes, "int8", "uint8") if kind == "MaxPool" and opset >= 12 else dtypes)
    x = d.data((d.pick((1, 2)), d.pick((1, 3, 8, 17)), *_sizes(d, rank)), dtype, summed=True)
    return Probe(kind, (x,), attributes, opset, outputs)


def global_pool(d: Draws) -> Probe:
    kind = d.pick(("GlobalAveragePool", "GlobalMaxPool"))
    shape = (d.size(), d.size(), *_sizes(d, d.number(1, 3)))
    return Probe(kind, (d.data(shape, d.floats(), summed=True),), {}, d.opset(7, 17, 22))


_SCALES = (0.3, 0.5, 0.7, 0.9, 1.0, 1.4, 1.5, 1.8, 2.0, 2.0, 2.5, 3.0)


def resize(d: Draws) -> Probe:
    opset = d.opset(10, 11, 13, 18, 19)
    rank = d.pick((3, 4, 4, 4, 5))
    shape = (d.pick((1, 1, 2)), d.pick((1, 3, 8, 17)), *d.ints(rank - 2, 1, 9))
    mode = d.pick(
        ("nearest", "linear", "cubic") if opset > 10 and rank == 4 else ("nearest", "linear")
    )
    attributes: dict[str, Any] = {"mode": mode}
    x = d.data(shape, d.pick(("float32", "float32", "float32", "float16", "uint8", "int8")))
    scales = [1.0, 1.0, *(d.pick(_SCALES) for _ in range(rank - 2))]
    if d.chance(0.1):
        scales[1] = 2.0
    if opset == 10:
        return Probe("Resize", (x, d.constant(scales, "float32")), attributes, opset)
    modes = [
        "half_pixel",
        "pytorch_half_pixel",
        "asymmetric",
        "align_corners",
        "tf_crop_and_resize",
    ]
    modes += ["tf_half_pixel_for_nn"] * (opset == 11) + ["half_pixel_symmetric"] * (opset == 19)
    if d.chance(0.85):
        attributes["coordinate_transformation_mode"] = d.pick(modes)
    if mode == "nearest" and d.chance(0.7):
        attributes["nearest_mode"] = d.pick(
            ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        )
    if mode == "cubic" and d.chance(0.5):
        attributes["cubic_coeff_a"] = d.pick((-0.5, -0.75))
    if mode == "cubic" and d.chance(0.3):
        attributes["exclude_outside"] = 1
    if opset >= 18 and mode != "nearest" and d.chance(0.2):
        attributes["antialias"] = 1
    roi: Given | None = None
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        ends = [0.0] * rank + [1.0] * rank
        ends[rank - 1], ends[-1] = 0.1, d.pick((0.8, 1.3))
        roi = d.constant(ends, "float32")
        attributes["extrapolation_value"] = d.pick((0.0, 7.5))
    elif d.chance(0.3):
        roi = d.constant([], "float32")
    by_scales = d.chance(0.6)
    sizes = [*shape[:2], *d.ints(rank - 2, 1, 12)]
    if opset >= 18 and d.chance(0.3):
        attributes["axes"] = list(range(2, rank)) if d.chance(0.7) else [-1, -2]
        scales, sizes = scales[2:], sizes[2:]
        scales, sizes = (v[: len(attributes["axes"])] for v in (scales, sizes))
        if roi is not None and roi.first.size:
            roi = d.constant([0.1] * len(sizes) + [0.9] * len(sizes), "float32")
    if opset >= 18 and not by_scales and d.chance(0.3):
        attributes["keep_aspect_ratio_policy"] = d.pick(("stretch", "not_larger", "not_smaller"))
    if by_scales:
        return Probe("Resize", (x, roi, d.parameter(scales, "float32")), attributes, opset)
    return Probe("Resize", (x, roi, None, d.parameter(sizes)), attributes, opset)


def upsample(d: Draws) -> Probe:
    rank = d.pick((3, 4, 4, 4, 5))
    x = d.data((d.pick((1, 2)), d.pick((1, 3, 8)), *d.ints(rank - 2, 1, 9)))
    scales = [1.0, 1.0, *(d.pick((1.0, 1.4, 1.5, 2.0, 2.5, 3.0)) for _ in range(rank - 2))]
    mode = d.pick(("nearest", "linear"))
    if d.chance(0.5):
        return Probe("Upsample", (x,), {"mode": mode, "scales": scales}, 7)
    return Probe("Upsample", (x, d.constant(scales, "float32")), {"mode": mode}, 9)


FAMILIES = {
    conv: 8, conv_transpose: 4, pool: 7, global_pool: 2, resize: 7, upsample: 2,
}  # fmt: skip
"""Generators, each with its relative frequency."""
