"""Layouts inside of programs, parts of tensors that need no copy, and sizes of tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Value
from coexec.engines.kernels.building import Build, build
from coexec.engines.kernels.tile_shapes import Sizes, expected_us, tile_shapes
from coexec.model.load import load
from tests.helpers.gpu_networks import module_of
from tests.helpers.small_models import from_nodes, tensor_info

GPU = Architecture("nvidia", 4, compute_units=132, max_group=1024, local_bytes=49152)
CORES = Architecture("cpu", 4, registers=32)
node = helper.make_node


def built(
    nodes: list[object],
    inputs: dict[str, list[int]],
    outputs: dict[str, list[int]],
    weights: dict[str, np.ndarray] | None = None,
    arch: Architecture = GPU,
) -> Build:
    infos = ([tensor_info(name, shape) for name, shape in of.items()] for of in (inputs, outputs))
    return build(module_of(load(from_nodes(nodes, *infos, weights or {}))), arch)


def names(found: Build) -> list[str]:
    return [launch.name for launch in found.launches]


def blocks(found: Build) -> set[int]:
    """The widths of the blocks of all tensors."""
    arguments = (value for launch in found.launches for value in launch.arguments)
    return {value.block for value in arguments if isinstance(value, Value)}


@pytest.mark.parametrize("arch", [GPU, CORES])
def test_tensors_of_attention_are_row_major_and_heads_are_split_without_a_kernel(
    arch: Architecture,
) -> None:
    """Blocks of heads would have to be made and undone around each product."""
    found = built(
        [
            node("Reshape", ["x", "heads"], ["h"]),
            node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
            node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
            node("MatMul", ["q", "k"], ["s"]),
            node("Softmax", ["s"], ["p"], axis=-1),
            node("MatMul", ["p", "q"], ["o"]),
            node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
            node("Reshape", ["t", "whole"], ["y"]),
        ],
        {"x": [1, 16, 96]},
        {"y": [1, 16, 96]},
        {"heads": np.array([1, 16, 12, 8]), "whole": np.array([1, 16, 96])},
        arch,
    )
    assert arch == CORES or "reshape" not in names(found)
    values = [v for one in found.launches for v in one.arguments if isinstance(v, Value)]
    assert {value.block for value in values if value.name in set("hqkspot")} == {0}


def test_what_is_connected_with_a_convolution_has_blocks() -> None:
    found = built(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("Sigmoid", ["c"], ["s"]),
            node("Mul", ["s", "c"], ["m"]),
            node("Softmax", ["m"], ["y"], axis=3),
        ],
        {"x": [1, 8, 4, 4]},
        {"y": [1, 8, 4, 4]},
        {"w": np.ones((8, 8, 1, 1), np.float32)},
    )
    tensors = [
        value for one in found.launches for value in one.arguments if hasattr(value, "block")
    ]
    assert {value.block for value in tensors} == {4}


def test_concats_that_begin_a_larger_one_need_no_kernel() -> None:
    """Each layer of a dense network reads all results so far."""
    weights = {"x0.w": np.ones((8, 8, 1, 1), np.float32)}
    nodes = [node("Conv", ["x", "x0.w"], ["x0"])]
    for layer in range(4):
        parts = [f"x{number}" for number in range(layer + 1)]
        weights[f"w{layer}"] = np.ones((8, 8 * len(parts), 1, 1), np.float32)
        nodes += [
            node("Concat", parts, [f"c{layer}"], axis=1),
            node("Conv", [f"c{layer}", f"w{layer}"], [f"x{layer + 1}"]),
        ]
    nodes += [
        node("Concat", [f"x{n}" for n in range(5)], ["all"], axis=1),
        node("Conv", ["all", "last"], ["y"]),
    ]
    weights["last"] = np.ones((8, 40, 1, 1), np.float32)
    found = built(nodes, {"x": [1, 8, 5, 5]}, {"y": [1, 8, 5, 5]}, weights)
    assert "concat" not in names(found)
    assert len(found.launches) == 6


@pytest.mark.parametrize("width", [4, 8])
def test_a_memory_that_moves_takes_no_other_tensor_along(width: int) -> None:
    """``n`` begins two larger Concats, and its memory can be in one of them only."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal((8, 8 * count, 1, 1)).astype(np.float32)
        for count, name in enumerate(("one", "two", "three"), start=1)
    }
    nodes = [
        node("Conv", ["x", "one"], ["a"]),
        node("Conv", ["a", "one"], ["b"]),
        node("Concat", ["a", "b"], ["n"], axis=1),
        node("Conv", ["n", "two"], ["c"]),
        node("Conv", ["c", "one"], ["d"]),
        node("Concat", ["a", "b", "c"], ["l"], axis=1),
        node("Concat", ["n", "d"], ["m"], axis=1),
        node("Conv", ["l", "three"], ["p"]),
        node("Conv", ["m", "three"], ["q"]),
        node("Add", ["p", "q"], ["y"]),
    ]
    shape = [1, 8, 5, 5]
    found = built(nodes, {"x": shape}, {"y": shape}, weights, Architecture("cpu", width))
    places = [found.aliases.of(name) for name in ("a", "b", "c", "d")]
    assert len(set(places)) == len(places)


@given(
    st.builds(
        Sizes,
        rows=st.integers(1, 100_000),
        columns=st.integers(1, 5000),
        inner=st.integers(1, 2000).map(lambda n: 4 * n),
        matrices=st.integers(1, 64),
    ),
    st.integers(1, 200),
    st.sampled_from([64, 128, 256, 1024]),
    st.sampled_from([8192, 16384, 49152]),
)
def test_tiles_fit_the_processor_and_the_first_is_expected_to_be_fastest(
    sizes: Sizes, units: int, group: int, local: int
) -> None:
    arch = Architecture("nvidia", 4, compute_units=units, max_group=group, local_bytes=local)
    found = tile_shapes(sizes, arch)
    assert all(t.items * t.parts <= group and t.local_bytes <= local for t in found)
    expected = [expected_us(tile, sizes, arch) for tile in found]
    assert expected == sorted(expected)
    assert len(set(found)) == len(found)


def test_a_product_with_one_right_side_is_one_matrix() -> None:
    """Fourteen products of 14 rows would fill a quarter of each tile."""
    found = built(
        [node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]), node("MatMul", ["t", "w"], ["y"])],
        {"x": [1, 384, 14, 14]},
        {"y": [1, 14, 14, 1536]},
        {"w": np.ones((384, 1536), np.float32)},
    )
    assert found.launches[1].grid[2] <= 8  # parts of the inner axis, and no matrices


@pytest.mark.parametrize("columns", [96, 97])
def test_rows_are_read_by_vectors_where_they_are_whole_vectors(columns: int) -> None:
    found = built(
        [node("Softmax", ["x"], ["y"], axis=-1)], {"x": [40, columns]}, {"y": [40, columns]}
    )
    assert ("float near_x" in found.launches[0].source.replace("4 near", " near")) == (
        columns == 97
    )


@pytest.mark.parametrize("group, local", [(64, 49152), (1024, 16384), (64, 9000)])
def test_small_gpus_have_tiles_too(group: int, local: int) -> None:
    arch = Architecture("mobile", 4, compute_units=8, max_group=group, local_bytes=local)
    tiles = tile_shapes(Sizes(200, 200, 200), arch)
    assert tiles and all(tile.rows * tile.columns <= 2 for tile in tiles)


def test_rows_without_end_are_on_two_axes() -> None:
    """CUDA allows 65,535 groups on the second axis."""
    found = built(
        [node("Softmax", ["x"], ["y"], axis=-1)], {"x": [100_000, 64]}, {"y": [100_000, 64]}
    )
    _, y, z = found.launches[0].grid
    assert y * z >= 100_000 and max(y, z) < 65_536


@pytest.mark.parametrize("family, block", [("cpu", 8), ("nvidia", 4), ("mobile", 4)])
def test_a_product_of_two_vectors_is_a_scalar(family: str, block: int) -> None:
    arch = Architecture(family, block, local_bytes=49152)  # type: ignore[arg-type]
    weights = {"w": np.ones(2, np.float32)}
    found = built([node("MatMul", ["x", "w"], ["y"])], {"x": [2]}, {"y": []}, weights, arch)
    assert len(found.launches) == 1


def test_products_on_cores_store_vectors_in_rows_of_any_length() -> None:
    weights = {"w": np.ones((8, 21), np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    found = built(nodes, {"x": [5, 8]}, {"y": [5, 21]}, weights, Architecture("cpu", 8))
    assert "PUTS_y(" in found.launches[0].source
