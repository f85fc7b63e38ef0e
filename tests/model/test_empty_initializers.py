"""Initializers without elements stay inputs of the nodes that are cut."""

import numpy as np
import pytest
from onnx import helper

from coexec.graph.graph import Piece
from coexec.graph.region import Region
from coexec.model.load import load
from tests.helpers.onnx_models import part_feeds, random_feeds, run, segment_inputs, written
from tests.helpers.small_models import from_nodes, tensor_info

EMPTY = np.zeros(0, np.float32)


@pytest.mark.parametrize("rows", [(0, 6), (4, 12)])
@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("opset", [11, 13])
def test_a_resize_without_a_region(opset: int, by_size: bool, rows: tuple[int, int]) -> None:
    """As PyTorch writes it for opset 11: region, and scales beside sizes, have no elements."""
    scales = EMPTY if by_size else np.array([1, 1, 2, 2], np.float32)
    inputs = ["x", "roi", "scales", *(["sizes"] if by_size else [])]
    words = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    weights = {"roi": EMPTY, "scales": scales, "sizes": np.array([1, 3, 12, 10], np.int64)}
    used = {name: array for name, array in weights.items() if name in inputs}
    model = load(
        from_nodes(
            [helper.make_node("Resize", inputs, ["y"], "node", **words)],
            [tensor_info("x", [1, 3, 6, 5])],
            [tensor_info("y", [1, 3, 12, 10])],
            used,
            opset,
        )
    )
    region = Region((0, 0, rows[0], 0), (1, 3, rows[1], 10))
    piece = Piece("node", region)
    feeds = random_feeds(model)
    reads = segment_inputs(model.graph, [piece])
    small = written(model, [piece], [("y", region)])
    found = run(small, part_feeds(model, reads, feeds))[0]
    np.testing.assert_array_equal(found, run(model.source, feeds)[0][region.slices])
