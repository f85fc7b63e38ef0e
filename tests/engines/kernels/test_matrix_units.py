"""Products by matrix units, computed by work items that do what a warp of a GPU does."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from coexec.arrays import Array
from coexec.engines.kernels import conv_tiled, gemm_tiled
from coexec.engines.kernels.architecture import MatrixUnit
from coexec.engines.kernels.tile_shapes import WARP_SHAPES, TileShape
from coexec.model.load import load
from tests.helpers.fake_cuda import fake_cuda
from tests.helpers.gpu_networks import run_on
from tests.helpers.small_models import from_nodes, tensor_info

TILES = [replace(one, chunks=1 + n % 2, stages=2 + n % 3) for n, one in enumerate(2 * WARP_SHAPES)]
UNITS: tuple[MatrixUnit, ...] = ("tf32", "fp16")


def rounded(array: Array, unit: MatrixUnit) -> Array:
    """The numbers that matrix units multiply, in 64 bits."""
    if unit == "fp16":
        return array.astype(np.float16).astype(np.float64)
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def computed(
    nodes: list[object],
    feeds: dict[str, Array],
    shape: list[int],
    weights: dict[str, Array],
    unit: MatrixUnit,
) -> Array:
    inputs = [tensor_info(name, list(array.shape)) for name, array in feeds.items()]
    proto = from_nodes(nodes, inputs, [tensor_info("y", shape)], weights)
    with fake_cuda(precision=unit) as engine:
        return run_on(engine, load(proto), feeds)["y"]


def assert_sums(found: Array, expected: Array, size: Array) -> None:
    """``size``: the sums of the products' absolute values, which bound the error of float32."""
    assert np.all(np.abs(found - expected) <= 2e-6 * size + 1e-30)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_each_tile_multiplies_what_it_is_given(
    tile: TileShape, unit: MatrixUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = TILES.index(tile)
    rng = np.random.default_rng(number)
    stages = tile.stages if unit == "fp16" else 2
    chosen = replace(tile, unit=unit, stages=stages, splits=(1, 2, 4, 8)[number % 4])
    monkeypatch.setattr(gemm_tiled, "tile_of", lambda *_: chosen)
    m, k, n = (int(size) for size in rng.integers(1, (70, 100, 50)))
    packed = chosen.stages > 2 or number % 2 == 0
    k = 4 * k if chosen.stages > 2 else k
    m += 4096 // k + 1 if chosen.stages > 2 else 0
    n = min(n, 4096 // m)  # larger tensors are stored in 16 bits
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    found = computed(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        {"a": a} if packed else {"a": a, "b": b},
        [m, n],
        {"b": b} if packed else {},
        unit,
    )
    x, w = rounded(a, unit), rounded(b, unit)
    assert_sums(found, x @ w, np.abs(x) @ np.abs(w))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("channels, stages", [(3, 2), (16, 3), (18, 2), (32, 4)])
def test_a_convolution_is_such_a_product(
    channels: int, stages: int, unit: MatrixUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile of the inner axis may have one tap or several."""
    tile = replace(WARP_SHAPES[5], unit=unit, stages=stages if unit == "fp16" else 2)
    monkeypatch.setattr(conv_tiled, "tiles_for", lambda *_: [tile])
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((1, channels, 27, 16)).astype(np.float32)
    w = rng.standard_normal((9, channels, 3, 3)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    found = computed([conv], {"x": x}, [1, 9, 27, 16], {"w": w}, unit)
    padded = np.pad(rounded(x, unit)[0], ((0, 0), (1, 1), (1, 1)))
    taps = np.stack(
        [padded[:, dy : dy + 27, dx : dx + 16] for dy in range(3) for dx in range(3)], axis=1
    )
    factors = rounded(w, unit).reshape(9, channels, 9)
    expected, size = (
        np.einsum("ock,ckyx->oyx", *pair)[None]
        for pair in ((factors, taps), (np.abs(factors), np.abs(taps)))
    )
    assert_sums(found, expected, size)
