"""Kernels that layers of different sizes share on CPU cores."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.engines.base import OpenEngine
from coexec.engines.cpp import device
from coexec.engines.kernels import conv
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Source
from coexec.engines.kernels.building import build
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.research import zoo
from tests.helpers.core_programs import opened_cpp
from tests.helpers.gpu_networks import module_of, run_on
from tests.helpers.small_models import from_nodes, tensor_info

CPU = Architecture("cpu", 16, registers=32)


def convolutions(
    shapes: list[tuple[int, ...]],
    kernel: int | tuple[int, int] = 1,
    pad: int = 0,
    stride: int = 1,
    group: int = 1,
) -> onnx.ModelProto:
    """One convolution for each (channels in, channels out, height, width), side by side."""
    rng = np.random.default_rng(0)
    weights, nodes, inputs, outputs = {}, [], [], []
    taps = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    for i, (ins, outs, h, w) in enumerate(shapes):
        scale = (ins * math.prod(taps)) ** -0.5
        weight = rng.standard_normal((outs, ins // group, *taps)) * scale
        weights[f"w{i}"] = weight.astype(np.float32)
        attributes = {"pads": [pad] * 4, "strides": [stride] * 2, "group": group}
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"y{i}"], f"c{i}", **attributes))
        inputs.append(tensor_info(f"x{i}", [1, ins, h, w]))
        edges = zip((h, w), taps, strict=True)
        sizes = [(size + 2 * pad - tap) // stride + 1 for size, tap in edges]
        outputs.append(tensor_info(f"y{i}", [1, outs, *sizes]))
    return from_nodes(nodes, inputs, outputs, weights)


def check(engine: OpenEngine, proto: onnx.ModelProto) -> None:
    """Compare with ONNX Runtime."""
    model = load(proto)
    feeds = random_inputs(model.graph)
    names = [o.name for o in proto.graph.output]
    found = run_on(engine, model, feeds)
    for name, expected in zip(names, plain_session(proto).run(names, feeds), strict=True):
        assert worst_difference(found[name], expected) < 1e-4, name


def sources(proto: onnx.ModelProto, arch: Architecture = CPU) -> set[str]:
    return {launch.source for launch in build(module_of(load(proto)), arch).launches}


@pytest.mark.parametrize("width", [16, 8, 4])
def test_layers_that_differ_in_sizes_share_a_kernel(width: int) -> None:
    """Channels in whole blocks, any height, any row that is cut into tiles of equal length."""
    arch = Architecture("cpu", width, registers=32)
    b = width
    shapes = [(b, b, 12, 12), (8 * b, b, 12, 20), (3 * b, b, 66, 40), (64 * b, b, 25, 40)]
    assert len(sources(convolutions(shapes), arch)) == 1
    rows = [(c, b, h, 24) for c, h in ((b, 20), (2 * b, 11), (5 * b, 40))]
    assert len(sources(convolutions(rows, 5, 2, 2), arch)) == 2  # and the copy with padding


def test_gpus_keep_sizes_as_literals() -> None:
    shapes = [(16, 16, 12, 12), (128, 16, 12, 20)]
    assert len(sources(convolutions(shapes), Architecture("nvidia", 4, compute_units=16))) == 2


def test_a_shared_kernel_is_compiled_once_and_computes_each_layer(tmp_path: Path) -> None:
    engine = opened_cpp(tmp_path, CPU)
    check(engine, convolutions([(16, 16, 12, 12), (128, 16, 12, 20), (640, 16, 26, 20)]))
    assert engine.libraries.compiled == 3


@pytest.mark.parametrize(
    ("kernel", "m"),
    [
        *(((3, 3), m) for m in (2, 3, 4, 5)),
        *(((5, 5), 4), ((1, 7), 4), ((7, 1), 3), ((3, 1), 5), ((2, 5), 3), ((7, 7), 2)),
    ],
    ids=str,
)
def test_winograd_with_any_number_of_tiles(
    kernel: tuple[int, int], m: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products take six or five tiles, which 1 to 4, 7 to 9, 13, 14 and 19 are not made of."""
    h, w = (size - 1 for size in kernel)
    shapes = [(16, 16, m + h, m * tiles - tiles % 2 + w) for tiles in range(1, 21)]
    shapes += [(20, 40, 9 + h, 11 + w), (16, 16, 60, 57)]

    def winograd(key: str, variants: Mapping[str, Any]) -> str:
        return f"winograd {m}"

    monkeypatch.setattr(conv, "_WINOGRAD_TILES", 100)
    monkeypatch.setattr(device, "build", partial(build, chooser=winograd))
    proto = convolutions(shapes, kernel)
    launches = build(module_of(load(proto)), CPU, winograd).launches
    assert {launch.name for launch in launches} == {"conv_winograd"}
    check(opened_cpp(tmp_path, CPU), proto)


@pytest.mark.parametrize("channels", [1, 2, 17, 19])
def test_winograd_reads_no_lane_past_the_last_channel(channels: int, tmp_path: Path) -> None:
    """A logarithm leaves infinity there."""
    rng = np.random.default_rng(0)
    weights = {
        "a": np.abs(rng.standard_normal((channels, 16, 1, 1))).astype(np.float32),
        "b": rng.standard_normal((16, channels, 3, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Abs", ["x"], ["positive"]),
        helper.make_node("Conv", ["positive", "a"], ["sums"]),
        helper.make_node("Log", ["sums"], ["logs"]),
        helper.make_node("Conv", ["logs", "b"], ["y"], pads=[1] * 4),
    ]
    x, y = tensor_info("x", [1, 16, 20, 20]), tensor_info("y", [1, 16, 20, 20])
    check(opened_cpp(tmp_path, CPU), from_nodes(nodes, [x], [y], weights))


@pytest.mark.parametrize("kernel", [(7, 7), (5, 6), (3, 3), (2, 1), (1, 8)], ids=str)
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_images_in_phases(
    kernel: tuple[int, int], pad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stride 2 as stride 1, with rows and columns left over or not, also of padding."""
    shapes: list[tuple[int, ...]] = [(c, 20, 9 + c, 17 - c) for c in (1, 2, 3, 4)]
    shapes.append((3, 48, 60, 57))

    def phases(key: str, variants: Mapping[str, Any]) -> str:
        return "phases" if "phases" in variants else next(iter(variants))

    monkeypatch.setattr(device, "build", partial(build, chooser=phases))
    proto = convolutions(shapes, kernel, pad, stride=2)
    launches = build(module_of(load(proto)), CPU, phases).launches
    assert sum(launch.name == "conv_phases" for launch in launches) == len(shapes)
    check(opened_cpp(tmp_path, CPU), proto)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shapes", "kernel"),
    [
        ([(16, 16, 5, w) for w in range(1, 27)], 1),
        ([(c, 48, 7, 9) for c in (9, 15, 16, 17, 24, 31)], 3),
        ([(512, 80, 9, 9), (512, 80, 33, 31)], 3),
        ([(c, 24, 11, 13) for c in (1, 3, 4, 5, 8)], 5),
    ],
    ids=["rows", "channels", "chunks", "planes"],
)
def test_sizes_as_arguments_are_right(
    shapes: list[tuple[int, ...]], kernel: int, tmp_path: Path
) -> None:
    check(opened_cpp(tmp_path, CPU), convolutions(shapes, kernel, kernel // 2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_filters_of_one_tap_take_large_images_band_by_band(
    stride: int, units: int, tmp_path: Path
) -> None:
    shapes = [
        (144, 24, 40, 37),
        (300, 120, 33, 32),
        (1100, 40, 11, 13),
        (16, 16, 1, 9001),
        (16, 40, 9001, 1),
    ]
    arch = replace(CPU, compute_units=units)
    proto = convolutions(shapes, stride=stride)
    launches = build(module_of(load(proto)), arch).launches
    assert {launch.name for launch in launches} == {"conv_cpu"}  # nothing is copied
    assert min(launch.grid[1] for launch in launches) > 1
    check(opened_cpp(tmp_path, arch), proto)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_depthwise_rows_of_any_length(kernel: int, stride: int, tmp_path: Path) -> None:
    """Tiles of eight and of four pixels, overlapping, between borders of one or two."""
    shapes = [(24, 24, 6, width) for width in range(kernel, 33)]
    proto = convolutions(shapes, kernel, kernel // 2, stride, group=24)
    assert len(sources(proto)) == 1
    check(opened_cpp(tmp_path, CPU), proto)


@pytest.mark.parametrize(("name", "most"), [("squeezenet", 13), ("mobilenet_v2", 15)])
def test_networks_have_few_kernels(name: str, most: int) -> None:
    """They had 32 and 37 with a kernel for each shape."""
    launches = build(module_of(load(zoo.build(name), digest=name)), CPU).launches
    assert len({launch.source for launch in launches}) <= most


def test_a_size_has_one_value() -> None:
    source = Source("k", CPU, sized=True)
    assert source.size("rows", 3) == "rows" and source.size("rows", 3) == "rows"
    with pytest.raises(ValueError, match="k: rows is both 3 and 4"):
        source.size("rows", 4)
    assert Source("k", CPU).size("rows", 3) == "3"
